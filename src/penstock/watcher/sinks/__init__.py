"""Where the numbers of a watched run can go besides the recording: `penstock.watch(loader, sinks=[…])`."""

from penstock.watcher.sinks.json_lines import JsonLines
from penstock.watcher.sinks.metric_log import MetricSink
from penstock.watcher.sinks.prometheus import Prometheus
from penstock.watcher.sinks.tensorboard import TensorBoard

__all__ = ["JsonLines", "MetricSink", "Prometheus", "TensorBoard"]

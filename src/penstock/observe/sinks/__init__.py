"""Where the numbers of a watched run can go besides the recording: `penstock.watch(loader, sinks=[…])`."""

from penstock.observe.sinks.lines import JsonLines
from penstock.observe.sinks.logs import Logs
from penstock.observe.sinks.prometheus import Prometheus
from penstock.observe.sinks.tensorboard import TensorBoard

__all__ = ["JsonLines", "Logs", "Prometheus", "TensorBoard"]

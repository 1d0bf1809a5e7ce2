"""Sinks: receivers of a watched run's numbers besides the recording, as in `penstock.watch(loader, sinks=[...])`."""

from penstock.watcher.sinks.opentelemetry import OpenTelemetry
from penstock.watcher.sinks.prometheus import Prometheus
from penstock.watcher.sinks.window_sinks import JsonLines, MetricSink, MLflow, TensorBoard

__all__ = ["JsonLines", "MLflow", "MetricSink", "OpenTelemetry", "Prometheus", "TensorBoard"]

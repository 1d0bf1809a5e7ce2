"""The OpenTelemetry sink, read by the SDK's own reader."""

import pytest

from penstock.recording.format import FetchLine, LoaderLine, StepLine
from penstock.watcher.sinks import OpenTelemetry

metrics = pytest.importorskip("opentelemetry.sdk.metrics", reason="opentelemetry-sdk is not installed")


def test_steps_and_batches_of_workers_are_recorded_with_their_attributes(monkeypatch):
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    reader = InMemoryMetricReader()
    provider = metrics.MeterProvider([reader])
    sink = OpenTelemetry(provider.get_meter("penstock"), slow_s=0.4)
    sink.put(LoaderLine(loader=0, name="train"))
    for batch in range(4):
        worker = batch % 2
        sink.put(FetchLine(loader=0, batch=batch, worker=worker, at_s=0.0, fetch_s=2.0))
        sink.put(StepLine(loader=0, batch=batch, at_s=0.0, wait_s=0.5 * worker, step_s=1.5, samples=8, worker=worker))
    sink.put(StepLine(loader=1, batch=0, at_s=0.0, wait_s=0.1, step_s=0.1))
    sink.close()
    (scope,) = reader.get_metrics_data().resource_metrics[0].scope_metrics
    provider.shutdown()
    found = {
        (metric.name, *sorted(point.attributes.items())): getattr(point, "sum", getattr(point, "value", None))
        for metric in scope.metrics
        for point in metric.data.data_points
    }
    one = (("loader", "train"), ("rank", 2), ("worker", 1))
    assert found[("penstock.batch.wait", *one)] == 1.0
    assert found[("penstock.batch.step", *one)] == 3.0
    assert found[("penstock.worker.batch", *one)] == 4.0
    assert found[("penstock.samples", *one)] == 16
    assert found[("penstock.slow_batches", *one)] == 2
    assert found[("penstock.batch.wait", ("loader", "loader1"), ("rank", 2))] == pytest.approx(0.1)
    assert {metric.unit for metric in scope.metrics} == {"s", "{sample}", "{batch}"}

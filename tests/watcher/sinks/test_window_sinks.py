import io
import json

import pytest

from penstock.errors import SettingError
from penstock.recording.format import LoaderLine, LoaderSetting, StepLine
from penstock.watcher.sinks import JsonLines, MetricSink, MLflow, TensorBoard


def step(batch, number=0):
    return StepLine(loader=number, batch=batch, at_s=0.0, wait_s=0.5, step_s=1.5, samples=8, phases={"forward": 0.25})


def feed(sink, batches=4):
    sink.put(LoaderLine(loader=0, name="train", settings={"num_workers": LoaderSetting(requested=0, in_force=0)}))
    for batch in range(batches):
        sink.put(step(batch))
    sink.close()


class MetricLog:
    """A logger with the interface of a W&B run; it keeps what was logged."""

    def __init__(self):
        self.rows = []

    def log(self, data, step):
        self.rows.append((step, data))


NUMBERS = {
    "penstock/train/wait_mean_s": 0.5,
    "penstock/train/wait_p50_s": 0.5,
    "penstock/train/wait_p99_s": 0.5,
    "penstock/train/wait_max_s": 0.5,
    "penstock/train/wait_std_s": 0.0,
    "penstock/train/slow_batches": 0.0,
    "penstock/train/step_mean_s": 1.5,
    "penstock/train/samples_per_s": 4.0,
    "penstock/train/phase/forward_s": 0.25,
}


def test_a_metric_sink_logs_one_dictionary_per_window():
    run = MetricLog()
    feed(MetricSink(run, window=2))
    assert run.rows == [(2, NUMBERS), (4, NUMBERS)]


def test_a_metric_sink_logs_at_the_current_step_of_the_run():
    run = MetricLog()
    run.step = 1000
    feed(MetricSink(run, window=4))
    assert run.rows == [(1000, NUMBERS)]


def test_close_writes_the_window_that_is_not_full():
    run = MetricLog()
    feed(MetricSink(run, window=3))
    assert [step for step, _ in run.rows] == [3, 4]


def test_a_loader_without_a_name_is_named_by_its_number():
    run = MetricLog()
    sink = MetricSink(run, window=1)
    sink.put(step(0, number=3))
    sink.close()
    assert run.rows[0][1]["penstock/loader3/wait_mean_s"] == 0.5


def test_tensorboard_reads_one_point_per_window(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        feed(TensorBoard(writer, window=2))
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == set(NUMBERS)
    assert [(each.step, each.value) for each in events.Scalars("penstock/train/samples_per_s")] == [(2, 4.0), (4, 4.0)]


def test_json_lines_writes_one_object_per_window_and_leaves_the_file_open():
    file = io.StringIO()
    feed(JsonLines(file, window=2))
    first, second = map(json.loads, file.getvalue().splitlines())
    assert (first["name"], first["total"], second["total"]) == ("train", 2, 4)
    assert first["phases"] == {"forward": 0.25}
    assert not file.closed


def test_nothing_is_written_after_the_receiver_has_failed():
    class BrokenLog(MetricLog):
        def log(self, data, step):
            super().log(data, step)
            raise ConnectionError("no route")

    run = BrokenLog()
    feed(MetricSink(run, window=3))
    assert [step for step, _ in run.rows] == [3]


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    """Return MLflow with a store of its own."""
    module = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    module.set_tracking_uri((tmp_path / "mlruns").as_uri())
    yield module
    module.end_run()


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_mlflow_has_one_point_per_window_in_the_active_run(mlflow):
    with mlflow.start_run() as run:
        feed(MLflow(window=2))
        assert mlflow.active_run().info.run_id == run.info.run_id
    client = mlflow.MlflowClient()
    assert set(client.get_run(run.info.run_id).data.metrics) == set(NUMBERS)
    points = client.get_metric_history(run.info.run_id, "penstock/train/wait_mean_s")
    assert [(point.step, point.value) for point in points] == [(2, 0.5), (4, 0.5)]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_mlflow_gets_names_that_it_takes(mlflow):
    run = mlflow.MlflowClient().create_run("0")
    sink = MLflow(run.info.run_id, window=1)
    sink.put(LoaderLine(loader=0, name="loaders[0] µ"))
    sink.put(step(0))
    sink.close()
    assert "penstock/loaders_0_ _/wait_mean_s" in mlflow.get_run(run.info.run_id).data.metrics


def test_mlflow_without_an_active_run_is_refused(mlflow):
    with pytest.raises(SettingError, match="no run of MLflow is active"):
        MLflow()

"""Where the numbers of a watched run can go."""

import io
import json
import logging
import os
import socket
import sys
import urllib.error
import urllib.request

import pytest

from penstock.errors import SettingError
from penstock.recording.format import HopsLine, LoaderLine, LoaderSetting, StepLine
from penstock.watcher.session import Session
from penstock.watcher.sinks import JsonLines, MetricSink, Prometheus, TensorBoard


def loader(number=0, name="train", workers=0):
    return LoaderLine(
        loader=number, name=name, settings={"num_workers": LoaderSetting(requested=workers, in_force=workers)}
    )


def step(batch, number=0, **known):
    known = {"wait_s": 0.5, "step_s": 1.5, "samples": 8, "phases": {"forward": 0.25}, **known}
    return StepLine(loader=number, batch=batch, at_s=0.0, **known)


def feed(sink, batches=4):
    sink.put(loader())
    for batch in range(batches):
        sink.put(step(batch))
    sink.close()


class Log:
    """As a run of W&B: takes nothing for a step that has passed."""

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


def test_a_log_gets_one_dictionary_per_window():
    run = Log()
    feed(MetricSink(run, window=2))
    assert run.rows == [(2, NUMBERS), (4, NUMBERS)]


def test_a_run_that_counts_steps_itself_gets_them_at_the_step_it_is_at():
    run = Log()
    run.step = 1000
    feed(MetricSink(run, window=4))
    assert run.rows == [(1000, NUMBERS)]


def test_the_rest_of_the_last_window_is_not_lost():
    run = Log()
    feed(MetricSink(run, window=3))
    assert [step for step, _ in run.rows] == [3, 4]


def test_a_loader_without_a_name_goes_by_its_number():
    run = Log()
    sink = MetricSink(run, window=1)
    sink.put(step(0, number=3))
    sink.close()
    assert run.rows[0][1]["penstock/loader3/wait_mean_s"] == 0.5


def test_a_real_tensorboard_shows_the_windows(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        feed(TensorBoard(writer, window=2))
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == set(NUMBERS)
    assert [(each.step, each.value) for each in events.Scalars("penstock/train/samples_per_s")] == [(2, 4.0), (4, 4.0)]


def test_json_lines_are_one_object_per_window():
    file = io.StringIO()
    feed(JsonLines(file, window=2))
    first, second = map(json.loads, file.getvalue().splitlines())
    assert (first["name"], first["total"], second["total"]) == ("train", 2, 4)
    assert first["phases"] == {"forward": 0.25}
    assert not file.closed


def test_a_sink_that_raises_is_switched_off_with_one_warning_and_the_others_go_on(caplog):
    class Broken(Log):
        def log(self, data, step):
            super().log(data, step)
            raise ConnectionError("no route")

    broken, good = Broken(), Log()
    session = Session([MetricSink(broken, window=1), MetricSink(good, window=1)])
    with caplog.at_level(logging.WARNING, "penstock"):
        for batch in range(5):
            session.put(step(batch))
        session.close()
    assert (len(broken.rows), len(good.rows)) == (1, 5)
    assert caplog.messages == ["MetricSink is switched off: ConnectionError: no route"]


# -- Prometheus ------------------------------------------------------------------------------------------------------


@pytest.fixture
def endpoint():
    sink = Prometheus(0)
    yield sink
    sink.close()


def get(port, path="/metrics"):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(f"http://127.0.0.1:{port}{path}", timeout=30)


def values(text):
    """What a scraper reads."""
    rows = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in rows}


def test_a_scrape_finds_the_sums_so_far(endpoint):
    for line in [loader(workers=4), step(0, ready=3, outstanding=8), step(1, ready=2, outstanding=8)]:
        endpoint.take(line)
    with get(endpoint.port) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        found = values(answer.read().decode())
    assert found == {
        'penstock_steps_total{loader="train"}': 2,
        'penstock_samples_total{loader="train"}': 16,
        'penstock_wait_seconds_total{loader="train"}': 1.0,
        'penstock_step_seconds_total{loader="train"}': 3.0,
        'penstock_phase_seconds_total{loader="train",phase="forward"}': 0.5,
        'penstock_slow_batches_total{loader="train"}': 0,
        'penstock_ready_batches{loader="train"}': 2,
        'penstock_outstanding_batches{loader="train"}': 8,
        'penstock_workers{loader="train"}': 4,
    }


def test_a_step_that_is_looked_at_speaks_for_those_before_it(endpoint):
    logged = {"profiled": False, "phases": {"log": 1.0}}
    for line in [loader(), step(0), step(1, **logged), step(2, **logged), step(3, phases={"forward": 0.5, "log": 1.0})]:
        endpoint.take(line)
    found = values(endpoint.text())
    assert found['penstock_phase_seconds_total{loader="train",phase="forward"}'] == 0.25 + 3 * 0.5
    assert found['penstock_phase_seconds_total{loader="train",phase="log"}'] == 3.0


def test_every_metric_has_its_type_and_help(endpoint):
    lines = endpoint.text().splitlines()
    assert len(lines) == 18
    for about, kind in zip(lines[::2], lines[1::2], strict=True):
        name = about.split()[2]
        assert about.startswith(f"# HELP {name} ")
        assert kind == f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}"


def test_slow_batches_are_counted(endpoint):
    for batch in range(20):
        endpoint.take(step(batch))
    endpoint.take(step(20, wait_s=60.0))
    assert values(endpoint.text())['penstock_slow_batches_total{loader="loader0"}'] == 1


def test_our_own_loader_shows_its_workers_and_ready_batches(endpoint):
    endpoint.take(loader())
    endpoint.take(HopsLine(loader=0, at_s=1.0, workers=6, ready=5))
    found = values(endpoint.text())
    assert found['penstock_workers{loader="train"}'] == 6
    assert found['penstock_ready_batches{loader="train"}'] == 5


def test_names_cannot_break_out_of_their_labels(endpoint):
    endpoint.take(loader(name='a"} 1\nevil{x="\\'))
    text = endpoint.text()
    assert 'penstock_workers{loader="a\\"} 1\\nevil{x=\\"\\\\"} 0\n' in text
    assert all(line.startswith(("#", "penstock_")) for line in text.splitlines())


def test_other_paths_are_not_found(endpoint):
    with pytest.raises(urllib.error.HTTPError) as error:
        get(endpoint.port, "/")
    assert error.value.code == 404
    error.value.close()


def test_lines_put_are_served_and_the_port_is_free_after_the_end():
    sink = Prometheus(0)
    sink.put(step(0))
    sink.close()
    assert values(sink.text())['penstock_steps_total{loader="loader0"}'] == 1
    with pytest.raises(urllib.error.URLError):
        get(sink.port)
    again = Prometheus(sink.port)
    again.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the port is free when the copy is closed too")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_port_is_free_though_a_forked_worker_still_has_the_socket():
    sink = Prometheus(0)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)  # until the parent lets go
        os._exit(0)
    try:
        sink.close()
        Prometheus(sink.port).close()
    finally:
        os.close(write)
        os.waitpid(child, 0)
        os.close(read)


def test_a_port_in_use_is_refused_with_advice():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingError, match=f"cannot serve metrics on 127.0.0.1:{port}.*Name a free port"):
            Prometheus(port)


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_is_none_is_refused(port):
    with pytest.raises(SettingError, match="cannot serve metrics"):
        Prometheus(port)


def test_a_client_that_hangs_up_does_no_harm(endpoint, capsys):
    with socket.create_connection(("127.0.0.1", endpoint.port)) as client:
        client.sendall(b"GET /met")
    with get(endpoint.port) as answer:
        assert answer.status == 200
    assert capsys.readouterr() == ("", "")

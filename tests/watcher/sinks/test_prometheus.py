import os
import socket
import sys
import urllib.error
import urllib.request

import pytest

from penstock.errors import SettingError
from penstock.recording.format import HopsLine, LoaderLine, LoaderSetting, StepLine
from penstock.watcher.sinks import Prometheus


def loader(number=0, name="train", workers=0):
    return LoaderLine(
        loader=number, name=name, settings={"num_workers": LoaderSetting(requested=workers, in_force=workers)}
    )


def step(batch, number=0, **known):
    known = {"wait_s": 0.5, "step_s": 1.5, "samples": 8, "phases": {"forward": 0.25}, **known}
    return StepLine(loader=number, batch=batch, at_s=0.0, **known)


@pytest.fixture
def endpoint():
    sink = Prometheus(0)
    yield sink
    sink.close()


def get(port, path="/metrics"):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(f"http://127.0.0.1:{port}{path}", timeout=30)


def values(text):
    """Return each metric with its value, as a scraper reads them."""
    rows = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in rows}


def test_a_scrape_returns_the_sums_so_far(endpoint):
    for line in [loader(workers=4), step(0, ready=3, outstanding=8), step(1, ready=2, outstanding=8)]:
        endpoint.handle(line)
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


def test_profiled_phases_are_counted_for_the_steps_since_the_last_profiled_one(endpoint):
    not_profiled = {"profiled": False, "phases": {"log": 1.0}}
    steps = [step(0), step(1, **not_profiled), step(2, **not_profiled), step(3, phases={"forward": 0.5, "log": 1.0})]
    for line in [loader(), *steps]:
        endpoint.handle(line)
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
        endpoint.handle(step(batch))
    endpoint.handle(step(20, wait_s=60.0))
    assert values(endpoint.text())['penstock_slow_batches_total{loader="loader0"}'] == 1


def test_hops_lines_set_workers_and_ready_batches(endpoint):
    endpoint.handle(loader())
    endpoint.handle(HopsLine(loader=0, at_s=1.0, workers=6, ready=5))
    found = values(endpoint.text())
    assert found['penstock_workers{loader="train"}'] == 6
    assert found['penstock_ready_batches{loader="train"}'] == 5


def test_special_characters_in_names_are_escaped(endpoint):
    endpoint.handle(loader(name='a"} 1\nevil{x="\\'))
    text = endpoint.text()
    assert 'penstock_workers{loader="a\\"} 1\\nevil{x=\\"\\\\"} 0\n' in text
    assert all(line.startswith(("#", "penstock_")) for line in text.splitlines())


def test_other_paths_are_not_found(endpoint):
    with pytest.raises(urllib.error.HTTPError) as error:
        get(endpoint.port, "/")
    assert error.value.code == 404
    error.value.close()


def test_queued_lines_are_served_and_close_frees_the_port():
    sink = Prometheus(0)
    sink.put(step(0))
    sink.close()
    assert values(sink.text())['penstock_steps_total{loader="loader0"}'] == 1
    with pytest.raises(urllib.error.URLError):
        get(sink.port)
    again = Prometheus(sink.port)
    again.close()


@pytest.mark.skipif(sys.platform != "linux", reason="on other systems the port is free when the copy is closed too")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_close_frees_the_port_though_a_forked_worker_still_has_the_socket():
    sink = Prometheus(0)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)  # returns when the parent closes its end
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
def test_an_invalid_port_is_refused(port):
    with pytest.raises(SettingError, match="cannot serve metrics"):
        Prometheus(port)


def test_a_client_that_closes_its_connection_early_causes_no_error(endpoint, capsys):
    with socket.create_connection(("127.0.0.1", endpoint.port)) as client:
        client.sendall(b"GET /met")
    with get(endpoint.port) as answer:
        assert answer.status == 200
    assert capsys.readouterr() == ("", "")

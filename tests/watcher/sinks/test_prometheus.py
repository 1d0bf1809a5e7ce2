import json
import os
import re
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from penstock.errors import SettingError
from penstock.recording.format import FetchLine, HopsLine, LoaderLine, LoaderSetting, StepLine
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
        'penstock_steps_total{loader="train",rank="0"}': 2,
        'penstock_samples_total{loader="train",rank="0"}': 16,
        'penstock_wait_seconds_total{loader="train",rank="0"}': 1.0,
        'penstock_step_seconds_total{loader="train",rank="0"}': 3.0,
        'penstock_phase_seconds_total{loader="train",rank="0",phase="forward"}': 0.5,
        'penstock_slow_batches_total{loader="train",rank="0"}': 0,
        'penstock_ready_batches{loader="train",rank="0"}': 2,
        'penstock_outstanding_batches{loader="train",rank="0"}': 8,
        'penstock_workers{loader="train",rank="0"}': 4,
        **{f'penstock_batch_wait_seconds{{loader="train",rank="0",quantile="{q}"}}': 0.5 for q in (0.5, 0.9, 0.99)},
        **{f'penstock_batch_step_seconds{{loader="train",rank="0",quantile="{q}"}}': 1.5 for q in (0.5, 0.9, 0.99)},
        'penstock_batch_wait_seconds_sum{loader="train",rank="0"}': 1.0,
        'penstock_batch_wait_seconds_count{loader="train",rank="0"}': 2,
        'penstock_batch_step_seconds_sum{loader="train",rank="0"}': 3.0,
        'penstock_batch_step_seconds_count{loader="train",rank="0"}': 2,
    }


def test_profiled_phases_are_counted_for_the_steps_since_the_last_profiled_one(endpoint):
    not_profiled = {"profiled": False, "phases": {"log": 1.0}}
    steps = [step(0), step(1, **not_profiled), step(2, **not_profiled), step(3, phases={"forward": 0.5, "log": 1.0})]
    for line in [loader(), *steps]:
        endpoint.handle(line)
    found = values(endpoint.text())
    assert found['penstock_phase_seconds_total{loader="train",rank="0",phase="forward"}'] == 0.25 + 3 * 0.5
    assert found['penstock_phase_seconds_total{loader="train",rank="0",phase="log"}'] == 3.0


def test_every_metric_has_its_type_and_help(endpoint):
    lines = endpoint.text().splitlines()
    assert len(lines) == 26
    for about, kind in zip(lines[::2], lines[1::2], strict=True):
        name = about.split()[2]
        assert about.startswith(f"# HELP {name} ")
        expected = "counter" if name.endswith("_total") else "summary" if name.endswith("_seconds") else "gauge"
        assert kind == f"# TYPE {name} {expected}"


def test_slow_batches_are_counted(endpoint):
    for batch in range(20):
        endpoint.handle(step(batch))
    endpoint.handle(step(20, wait_s=60.0))
    assert values(endpoint.text())['penstock_slow_batches_total{loader="loader0",rank="0"}'] == 1


def test_hops_lines_set_workers_and_ready_batches(endpoint):
    endpoint.handle(loader())
    endpoint.handle(HopsLine(loader=0, at_s=1.0, workers=6, ready=5))
    found = values(endpoint.text())
    assert found['penstock_workers{loader="train",rank="0"}'] == 6
    assert found['penstock_ready_batches{loader="train",rank="0"}'] == 5


def test_special_characters_in_names_are_escaped(endpoint):
    endpoint.handle(loader(name='a"} 1\nevil{x="\\'))
    text = endpoint.text()
    assert 'penstock_workers{loader="a\\"} 1\\nevil{x=\\"\\\\",rank="0"} 0\n' in text
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
    assert values(sink.text())['penstock_steps_total{loader="loader0",rank="0"}'] == 1
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


# -- as Prometheus and Grafana read it -----------------------------------------------------------------------------

DASHBOARD = json.loads((Path(__file__).parents[3] / "docs" / "grafana.json").read_text("utf-8"))


@pytest.fixture
def families(monkeypatch):
    """Return the metrics of two workers of rank 3 by name, as the parser of the Prometheus client reads them."""
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    sink = Prometheus(0)
    sink.handle(loader(name='a"b\\c', workers=2))
    for batch in range(100):
        worker = batch % 2
        wait_s = batch / 1000
        sink.handle(FetchLine(loader=0, batch=batch, worker=worker, at_s=0.0, fetch_s=0.1 + worker))
        sink.handle(step(batch, wait_s=wait_s, worker=worker, ready=1, outstanding=4))
    found = {family.name: family for family in parser.text_string_to_metric_families(sink.text())}
    sink.close()
    return found


def sample(families, name, **labels):
    """Return the value of the one sample with these labels."""
    samples = [each for family in families.values() for each in family.samples if each.name == name]
    (value,) = [each.value for each in samples if labels.items() <= each.labels.items()]
    return value


def test_a_prometheus_parser_reads_every_metric(families):
    kinds = {name: family.type for name, family in families.items()}
    assert kinds["penstock_batch_wait_seconds"] == kinds["penstock_worker_batch_seconds"] == "summary"
    assert kinds["penstock_steps"] == "counter"
    assert kinds["penstock_ready_batches"] == "gauge"
    assert all(family.samples and family.documentation for family in families.values())
    labels = [each.labels for family in families.values() for each in family.samples]
    assert all((each["loader"], each["rank"]) == ('a"b\\c', "3") for each in labels)


def test_quantiles_are_those_of_the_latest_batches(families):
    assert sample(families, "penstock_batch_wait_seconds", quantile="0.5") == pytest.approx(0.0495)
    assert sample(families, "penstock_batch_wait_seconds", quantile="0.99") == pytest.approx(0.09801)
    assert sample(families, "penstock_batch_wait_seconds_count") == 100


def test_each_worker_has_its_own_metrics(families):
    for worker, seconds in (("0", 0.1), ("1", 1.1)):
        assert sample(families, "penstock_worker_batch_seconds", worker=worker, quantile="0.9") == pytest.approx(
            seconds
        )
    awaited = [sample(families, "penstock_worker_awaited_seconds_total", worker=worker) for worker in "01"]
    assert sum(awaited) == pytest.approx(sample(families, "penstock_wait_seconds_total"))


def test_the_dashboard_asks_only_for_metrics_and_labels_that_exist(families):
    series = {}
    for family in families.values():
        for each in family.samples:
            series.setdefault(each.name, set()).update(each.labels)
    expressions = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    assert len(expressions) > 10
    for expression in expressions:
        asked = re.findall(r"(penstock_\w+)\{([^}]*)\}", expression)
        assert asked
        for name, matchers in asked:
            assert set(re.findall(r"(\w+)=~?\"", matchers)) <= series[name], expression
        for grouped, name in re.findall(r"by \(([^)]*)\) \((?:rate\()?(penstock_\w+)", expression):
            assert set(grouped.split(", ")) <= series[name], expression
        assert expression.count("(") == expression.count(")")
    shown = {name for expression in expressions for name in re.findall(r"penstock_\w+", expression)}
    assert {name for name in series if not name.endswith(("_sum", "_count"))} == shown


def test_the_panels_of_the_dashboard_do_not_overlap():
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not cells & taken
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])

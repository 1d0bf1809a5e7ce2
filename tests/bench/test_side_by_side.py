import pytest

from penstock.bench.fields import parse_field
from penstock.bench.side_by_side import (
    PENSTOCK_MODULE,
    PLAIN_MODULE,
    BenchmarkedLoader,
    BenchmarkLimits,
    benchmarked_loaders,
    prepare,
    run_rounds,
    summarise,
)
from penstock.bench.workload import load_workload, make_workload
from penstock.errors import PenstockError
from penstock.testing import REID, make_shards

IMAGE = (parse_field("image=.jpg:32"),)


@pytest.fixture
def shards(tmp_path):
    return [str(path) for path in make_shards(tmp_path / "shards", REID, samples=40, shards=4, scale=0.25)]


@pytest.fixture
def run_module(make_run):
    """A stand-in for `run_in_child` that delivers the whole workload and records which loaders ran."""

    class RunModule:
        def __init__(self):
            self.started = []
            self.rate = 100.0

        def __call__(self, argv, timeout_s):
            workload = load_workload(argv[1])
            self.started.append((argv[0], *argv[2:]))
            return make_run(samples=workload.samples, keys_digest=workload.keys_digest, rate=self.rate)

    return RunModule()


def test_each_round_starts_with_another_loader(shards, tmp_path, run_module):
    workload = make_workload(shards, IMAGE, 4, samples=100, min_shards=4, folder=tmp_path)
    assert len(list(run_rounds(workload, benchmarked_loaders((1, 2)), 4, tmp_path, run_module))) == 12
    ours, one, two = (PENSTOCK_MODULE,), (PLAIN_MODULE, "1"), (PLAIN_MODULE, "2")
    assert run_module.started == [ours, one, two, one, two, ours, two, ours, one, ours, one, two]


def test_a_run_that_lost_or_repeated_samples_is_refused(shards, tmp_path, make_run):
    workload = make_workload(shards, IMAGE, 4, samples=100, min_shards=4, folder=tmp_path)
    for damage in ({"samples": 39, "keys_digest": workload.keys_digest}, {"samples": 40, "keys_digest": "f" * 16}):
        run = make_run("plain", 2, **damage)
        with pytest.raises(PenstockError, match=r"plain with 2 workers delivered .* its speed means nothing"):
            list(
                run_rounds(
                    workload, [BenchmarkedLoader(PLAIN_MODULE, 2)], 1, tmp_path, lambda argv, timeout_s, run=run: run
                )
            )


def test_the_workload_takes_the_slowest_loader_the_given_seconds(shards, tmp_path, run_module):
    run_module.rate = 10.0
    workload = prepare(shards, IMAGE, BenchmarkLimits(2, None, seconds=2.0), tmp_path, run_module)
    assert run_module.started == [(PLAIN_MODULE, "1")]
    assert workload.samples == 20


def test_a_given_number_of_samples_needs_no_estimate(shards, tmp_path, run_module):
    workload = prepare(shards, IMAGE, BenchmarkLimits(2, 12), tmp_path, run_module)
    assert run_module.started == []
    assert workload.samples == 12


def test_summaries_are_medians_and_the_fastest_is_first(make_run):
    slow = [make_run("plain", 1, rate=rate, first_batch_s=first) for rate, first in ((10, 3), (30, 1), (20, 2))]
    fast = [make_run("penstock", 2, rate=rate) for rate in (90, 100, 110)]
    first, second = summarise([*slow, *fast])
    assert (first.loader, first.rate, first.rounds) == ("penstock", 100, 3)
    assert (second.rate, second.slowest_rate, second.fastest_rate, second.first_batch_s) == (20, 10, 30, 2)


def test_each_number_of_workers_has_its_own_summary(make_run):
    table = summarise([make_run("plain", 1, rate=1.0), make_run("plain", 4, rate=4.0)])
    assert [(summary.workers, summary.rate) for summary in table] == [(4, 4.0), (1, 1.0)]


def test_unknown_cpu_time_stays_unknown(make_run):
    assert summarise([make_run(cpu_s_per_sample=None)])[0].cpu_s_per_sample is None

import pytest

from penstock.bench.fields import parse_field
from penstock.bench.race import (
    OURS,
    PLAIN,
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
def runner(make_trial):
    """Delivers what the course asks for, and keeps a list of who was run."""

    class Runner:
        def __init__(self):
            self.ran = []
            self.rate = 100.0

        def __call__(self, argv, timeout_s):
            course = load_workload(argv[1])
            self.ran.append((argv[0], *argv[2:]))
            return make_trial(samples=course.samples, keys_digest=course.keys_digest, rate=self.rate)

    return Runner()


def test_each_round_another_one_begins(shards, tmp_path, runner):
    course = make_workload(shards, IMAGE, 4, samples=100, lanes=4, folder=tmp_path)
    assert len(list(run_rounds(course, benchmarked_loaders((1, 2)), 4, tmp_path, runner))) == 12
    mine, one, two = (OURS,), (PLAIN, "1"), (PLAIN, "2")
    assert runner.ran == [mine, one, two, one, two, mine, two, mine, one, mine, one, two]


def test_a_run_that_lost_or_repeated_samples_is_refused(shards, tmp_path, make_trial):
    course = make_workload(shards, IMAGE, 4, samples=100, lanes=4, folder=tmp_path)
    for wrong in ({"samples": 39, "keys_digest": course.keys_digest}, {"samples": 40, "keys_digest": "f" * 16}):
        trial = make_trial("plain", 2, **wrong)
        with pytest.raises(PenstockError, match=r"plain with 2 workers delivered .* its speed means nothing"):
            list(
                run_rounds(
                    course, [BenchmarkedLoader(PLAIN, 2)], 1, tmp_path, lambda argv, timeout_s, trial=trial: trial
                )
            )


def test_the_course_is_as_long_as_the_slowest_runs_in_the_seconds_given(shards, tmp_path, runner):
    runner.rate = 10.0
    course = prepare(shards, IMAGE, BenchmarkLimits(2, None, seconds=2.0), tmp_path, runner)
    assert runner.ran == [(PLAIN, "1")]
    assert course.samples == 20


def test_a_stated_number_of_samples_needs_no_try(shards, tmp_path, runner):
    course = prepare(shards, IMAGE, BenchmarkLimits(2, 12), tmp_path, runner)
    assert runner.ran == []
    assert course.samples == 12


def test_standings_are_medians_and_the_fastest_is_first(make_trial):
    slow = [make_trial("plain", 1, rate=rate, first_batch_s=first) for rate, first in ((10, 3), (30, 1), (20, 2))]
    fast = [make_trial("penstock", 2, rate=rate) for rate in (90, 100, 110)]
    first, second = summarise([*slow, *fast])
    assert (first.contestant, first.rate, first.rounds) == ("penstock", 100, 3)
    assert (second.rate, second.slowest_rate, second.fastest_rate, second.first_batch_s) == (20, 10, 30, 2)


def test_numbers_of_workers_stand_apart(make_trial):
    table = summarise([make_trial("plain", 1, rate=1.0), make_trial("plain", 4, rate=4.0)])
    assert [(standing.workers, standing.rate) for standing in table] == [(4, 4.0), (1, 1.0)]


def test_cpu_that_nobody_kept_stays_unknown(make_trial):
    assert summarise([make_trial(cpu_s_per_sample=None)])[0].cpu_s_per_sample is None

"""Sums of step and data time, and how they went."""

import random

import pytest

from penstock.diagnose.training_log.parsed_log import ProgressBar, StepMeter, TrainingLog
from penstock.diagnose.training_log.spans import spans
from penstock.diagnose.training_log.trend import trend


def running(epoch, step, time_s, wait_s):
    return StepMeter(epoch=epoch, step=step, running_time_s=time_s, running_wait_s=wait_s, time_s=time_s, wait_s=wait_s)


def test_running_means_become_the_sums_of_each_stretch():
    log = TrainingLog(meters=(running(0, 0, 3.0, 2.0), running(0, 9, 1.2, 0.7), running(1, 0, 1.0, 0.5)))
    assert [(span.batches, span.first) for span in spans(log)] == [(1, True), (9, False), (1, True)]
    assert [span.time_s for span in spans(log)] == [3.0, pytest.approx(9.0), 1.0]
    assert [span.wait_s for span in spans(log)] == [2.0, pytest.approx(5.0), 0.5]


def test_stretches_shorter_than_the_rounding_are_joined():
    meters = [running(0, step, 0.010, 0.001) for step in range(0, 2001, 100)]
    found = spans(TrainingLog(meters=tuple(meters)))
    assert sum(span.batches for span in found) == 2001
    assert all(span.wait_s / span.time_s == pytest.approx(0.1, abs=0.01) for span in found)


def test_the_same_line_twice_counts_once():
    meter = StepMeter(epoch=1, step=50, time_s=1.0, wait_s=0.25)
    later = StepMeter(epoch=1, step=100, time_s=1.0, wait_s=0.25)
    assert [span.batches for span in spans(TrainingLog(meters=(meter, meter, later, later)))] == [50, 50]


def test_a_log_that_begins_late_does_not_count_the_steps_before():
    meters = tuple(StepMeter(step=step, time_s=1.0, wait_s=0.5) for step in (70_000, 70_050, 70_100))
    assert sum(span.batches for span in spans(TrainingLog(meters=meters))) == 150


def test_bars_serve_where_they_name_the_wait():
    bars = tuple(
        ProgressBar(done=done, total=100, elapsed_s=done, wait_s=0.645, phases=(("bkbn", 0.009), ("bwd", 0.019)))
        for done in (10, 20, 30)
    )
    assert [span.wait_s / span.time_s for span in spans(TrainingLog(bars=bars))] == [pytest.approx(645 / 673)] * 3


def test_noise_is_steady():
    rng = random.Random(2)
    for _ in range(200):
        assert trend([rng.gauss(10, 1.5) for _ in range(rng.randint(6, 60))]).kind == "steady"


def test_a_change_is_found_where_it_happened():
    rng = random.Random(2)
    went = trend([rng.gauss(1, 0.1) for _ in range(20)] + [rng.gauss(3, 0.1) for _ in range(10)])
    assert (went.kind, went.at) == ("changed", 20)
    assert (went.before, went.after) == (pytest.approx(1, abs=0.1), pytest.approx(3, abs=0.1))


def test_a_drift_is_no_change():
    went = trend([1 + 0.1 * index for index in range(30)])
    assert (went.kind, went.before, went.after) == ("drifted", pytest.approx(1), pytest.approx(3.9))


def test_one_outlier_is_no_change():
    assert trend([1.0] * 12 + [30.0] + [1.0] * 12).kind == "steady"


def test_five_numbers_are_too_few():
    assert trend([1, 1, 1, 9, 9]) is None

"""Spans: sums of step time and data time over consecutive steps."""

import pytest

from penstock.diagnose.training_log.parsed_log import ProgressBar, StepMeter, TrainingLog
from penstock.diagnose.training_log.spans import find_spans


def running(epoch, step, time_s, wait_s):
    return StepMeter(epoch=epoch, step=step, running_time_s=time_s, running_wait_s=wait_s, time_s=time_s, wait_s=wait_s)


def test_running_means_become_the_sums_of_each_span():
    log = TrainingLog(meters=(running(0, 0, 3.0, 2.0), running(0, 9, 1.2, 0.7), running(1, 0, 1.0, 0.5)))
    assert [(span.batches, span.first) for span in find_spans(log)] == [(1, True), (9, False), (1, True)]
    assert [span.time_s for span in find_spans(log)] == [3.0, pytest.approx(9.0), 1.0]
    assert [span.wait_s for span in find_spans(log)] == [2.0, pytest.approx(5.0), 0.5]


def test_spans_shorter_than_the_rounding_error_are_joined():
    meters = [running(0, step, 0.010, 0.001) for step in range(0, 2001, 100)]
    found = find_spans(TrainingLog(meters=tuple(meters)))
    assert sum(span.batches for span in found) == 2001
    assert all(span.wait_s / span.time_s == pytest.approx(0.1, abs=0.01) for span in found)


def test_a_repeated_line_counts_once():
    meter = StepMeter(epoch=1, step=50, time_s=1.0, wait_s=0.25)
    later = StepMeter(epoch=1, step=100, time_s=1.0, wait_s=0.25)
    assert [span.batches for span in find_spans(TrainingLog(meters=(meter, meter, later, later)))] == [50, 50]


def test_steps_before_the_first_line_are_not_counted():
    meters = tuple(StepMeter(step=step, time_s=1.0, wait_s=0.5) for step in (70_000, 70_050, 70_100))
    assert sum(span.batches for span in find_spans(TrainingLog(meters=meters))) == 150


def test_bars_that_name_the_wait_are_used_without_meters():
    bars = tuple(
        ProgressBar(done=done, total=100, elapsed_s=done, wait_s=0.645, phases=(("bkbn", 0.009), ("bwd", 0.019)))
        for done in (10, 20, 30)
    )
    assert [span.wait_s / span.time_s for span in find_spans(TrainingLog(bars=bars))] == [pytest.approx(645 / 673)] * 3

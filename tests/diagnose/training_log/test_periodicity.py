"""Periods of slow batches: found where they are, not where they are not."""

import random

import pytest

from penstock.diagnose.training_log.parsed_log import SlowBatch
from penstock.diagnose.training_log.periodicity import find_period, find_periodicity, log_rate


def slow(*numbers, seconds=2.0, every_s=None):
    """Slow batches, a period's stamp each."""
    return [
        SlowBatch(number=number, seconds=seconds, at_s=None if every_s is None else index * every_s)
        for index, number in enumerate(numbers)
    ]


@pytest.mark.parametrize(
    ("gaps", "workers", "period"),
    [
        ([32] * 11, (), 32),
        ([32, 64, 32, 96, 32, 32], (), 32),  # some were not slow enough to be logged
        ([64, 96, 64, 160, 96], (), 32),  # the period itself was never seen
        ([32, 32, 17, 32, 32, 32, 32], (), 32),  # one is out of step
        ([64] * 5, (32,), 64),  # twice num_workers is another thing than num_workers
        ([64, 64, 64, 64, 64, 32], (32,), 32),
        ([8, 16, 24, 40], (8,), 8),
        ([32, 32], (), None),  # too few
        ([3, 8, 5, 21, 4, 9], (), None),
        ([1] * 50, (), None),
        ([2, 4, 2, 6], (), None),  # even by chance
        ([2] * 12, (), 2),
    ],
)
def test_period(gaps, workers, period):
    assert find_period(gaps, workers) == period


def test_chance_rarely_makes_a_period():
    rng = random.Random(1)
    found = [find_period([rng.randint(1, 60) for _ in range(rng.randint(3, 40))], (32,)) for _ in range(2000)]
    assert sum(period is not None for period in found) <= 4


def test_a_beat_is_from_arrival_to_arrival():
    found = find_periodicity(slow(8, 16, 24, 32, every_s=5.0))
    assert [(beat.batches, beat.seconds, beat.lost_s) for beat in found.beats] == [(8, 5.0, 2.0)] * 3


def test_lines_out_of_order_are_put_in_order_by_their_stamps():
    batches = slow(8, 16, 24, 32, 40, every_s=5.0)
    assert find_periodicity([batches[0], batches[3], batches[1], batches[4], batches[2]]).period == 8


def test_a_new_epoch_makes_no_gap():
    assert [beat.batches for beat in find_periodicity(slow(80, 88, 8, 16)).beats] == [8, 8]


def test_lines_of_other_ranks_count_once_with_the_longest_wait():
    found = find_periodicity([SlowBatch(number=n, seconds=s) for n in (8, 16, 24) for s in (2.0, 3.0)])
    assert [(beat.batches, beat.lost_s) for beat in found.beats] == [(8, 3.0), (8, 3.0)]
    assert found.doubled == 3


def test_stamps_that_leave_less_time_than_was_waited_are_not_used():
    found = find_periodicity(slow(8, 16, 24, every_s=1.0, seconds=2.0))
    assert (found.disagreeing, found.timed) == (2, ())


def test_without_stamps_the_pace_is_estimated_from_the_steps_own_time():
    found = find_periodicity(slow(8, 16, 24))
    assert log_rate(found, None) is None
    estimated = log_rate(found, 0.25)
    assert (estimated.batches, estimated.elapsed_s, estimated.share) == (16, 8.0, 0.5)
    assert estimated.estimated


def test_the_gain_is_what_losing_nothing_would_give():
    gain = log_rate(find_periodicity(slow(8, 16, 24, 32, every_s=4.0, seconds=2.0)), None).gain()
    assert (gain.low, gain.middle, gain.high) == (pytest.approx(1), pytest.approx(1), pytest.approx(1))

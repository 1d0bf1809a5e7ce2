"""Periods of slow batches, and the throughput over them."""

import random

import pytest

from penstock.diagnose.training_log.parsed_log import SlowBatch
from penstock.diagnose.training_log.periodicity import find_period, find_periodicity, measure_throughput


def slow(*numbers, seconds=2.0, every_s=None):
    """Return slow batches, with timestamps `every_s` apart if that is given."""
    return [
        SlowBatch(number=number, seconds=seconds, at_s=None if every_s is None else index * every_s)
        for index, number in enumerate(numbers)
    ]


@pytest.mark.parametrize(
    ("gaps", "workers", "period"),
    [
        ([32] * 11, (), 32),
        ([32, 64, 32, 96, 32, 32], (), 32),  # some slow batches were below the threshold of the log
        ([64, 96, 64, 160, 96], (), 32),  # no gap is the period itself
        ([32, 32, 17, 32, 32, 32, 32], (), 32),  # one gap differs
        ([64] * 5, (32,), 64),  # twice num_workers is not num_workers
        ([64, 64, 64, 64, 64, 32], (32,), 32),
        ([8, 16, 24, 40], (8,), 8),
        ([32, 32], (), None),  # too few
        ([3, 8, 5, 21, 4, 9], (), None),
        ([1] * 50, (), None),
        ([2, 4, 2, 6], (), None),  # all even, which may be chance
        ([2] * 12, (), 2),
    ],
)
def test_the_period_of_gaps_is_found(gaps, workers, period):
    assert find_period(gaps, workers) == period


def test_random_gaps_rarely_have_a_period():
    rng = random.Random(1)
    found = [find_period([rng.randint(1, 60) for _ in range(rng.randint(3, 40))], (32,)) for _ in range(2000)]
    assert sum(period is not None for period in found) <= 4


def test_an_interval_lasts_from_arrival_to_arrival():
    found = find_periodicity(slow(8, 16, 24, 32, every_s=5.0))
    assert [(interval.batches, interval.seconds, interval.lost_s) for interval in found.intervals] == [
        (8, 5.0, 2.0)
    ] * 3


def test_lines_are_sorted_by_their_timestamps():
    batches = slow(8, 16, 24, 32, 40, every_s=5.0)
    assert find_periodicity([batches[0], batches[3], batches[1], batches[4], batches[2]]).period == 8


def test_there_is_no_interval_between_epochs():
    assert [interval.batches for interval in find_periodicity(slow(80, 88, 8, 16)).intervals] == [8, 8]


def test_duplicate_lines_count_once_with_the_longest_wait():
    found = find_periodicity([SlowBatch(number=n, seconds=s) for n in (8, 16, 24) for s in (2.0, 3.0)])
    assert [(interval.batches, interval.lost_s) for interval in found.intervals] == [(8, 3.0), (8, 3.0)]
    assert found.duplicates == 3


def test_timestamps_that_leave_less_time_than_was_waited_are_not_used():
    found = find_periodicity(slow(8, 16, 24, every_s=1.0, seconds=2.0))
    assert (found.contradictory, found.timed) == (2, ())


def test_without_timestamps_the_throughput_is_estimated_from_the_step_time():
    found = find_periodicity(slow(8, 16, 24))
    assert measure_throughput(found, None) is None
    estimated = measure_throughput(found, 0.25)
    assert (estimated.batches, estimated.elapsed_s, estimated.lost_share) == (16, 8.0, 0.5)
    assert estimated.estimated

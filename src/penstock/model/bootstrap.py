"""How sure a gain is: the run drawn anew, many times, before and after the change."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from penstock.model.workload import Workload, gain

MOST_BATCHES = 500
"""In a resample: of longer runs so many are drawn, and the interval is made as much narrower as more would make it."""
LEAST_BLOCKS = 5
"""In a resample: fewer would all look alike."""


class Interval(NamedTuple):
    """Of a gain: 95% of the resamples lie between low and high."""

    low: float
    median: float
    high: float


def bootstrap(
    workload: Workload, change: Callable[[Workload], Workload], resamples: int = 50, seed: int = 0
) -> Interval:
    """How sure the gain of a change is: the run is drawn anew in blocks, and simulated before and after.

    A block is two windows or more, or a fifth of a run that is too short for that.
    """
    gains = [gain(sample, change(sample)) for sample in _resamples(workload, resamples, seed)]
    low, median, high = (float(found) for found in np.quantile(gains, (0.025, 0.5, 0.975), method="nearest"))
    narrower = (MOST_BATCHES / len(workload)) ** 0.5
    if narrower < 1:
        low, high = median + (low - median) * narrower, median + (high - median) * narrower
    return Interval(low, median, high)


@lru_cache(maxsize=1)
def _resamples(workload: Workload, number: int, seed: int) -> tuple[Workload, ...]:
    """Kept for the next change to the same run: each knows its rate by then."""
    random = np.random.default_rng(seed)
    count, window = len(workload), max(1, workload.workers)
    drawn = min(count, MOST_BATCHES)
    block = min(2 * window * max(1, round(drawn ** (1 / 3) / (2 * window))), max(1, drawn // LEAST_BLOCKS))
    begins = random.integers(count, size=(number, -(-drawn // block)))
    return tuple(workload.take((each[:, None] + np.arange(block)).ravel()[:drawn] % count) for each in begins)

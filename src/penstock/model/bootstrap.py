"""The confidence interval of a gain: the run is resampled many times, and simulated before and after the change."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from penstock.model.workload import Workload, gain

BATCHES_MAX = 500
"""Batches in a resample. For longer runs the interval is narrowed by as much as more batches would narrow it."""
BLOCKS_MIN = 5
"""Blocks in a resample: with fewer, all resamples would be alike."""


class Interval(NamedTuple):
    """The median gain, and the bounds between which 95% of the resamples lie."""

    low: float
    median: float
    high: float


def bootstrap(
    workload: Workload, change: Callable[[Workload], Workload], resamples: int = 50, seed: int = 0
) -> Interval:
    """Return the interval of a change's gain by a block bootstrap.

    A block holds at least two windows, or a fifth of a run that is too short for that.
    """
    gains = [gain(sample, change(sample)) for sample in _resamples(workload, resamples, seed)]
    low, median, high = (float(found) for found in np.quantile(gains, (0.025, 0.5, 0.975), method="nearest"))
    narrowed = (BATCHES_MAX / len(workload)) ** 0.5
    if narrowed < 1:
        low, high = median + (low - median) * narrowed, median + (high - median) * narrowed
    return Interval(low, median, high)


@lru_cache(maxsize=1)
def _resamples(workload: Workload, number: int, seed: int) -> tuple[Workload, ...]:
    """Return the resamples; they are kept for the next change to the same run, because each caches its own rate."""
    random = np.random.default_rng(seed)
    count, window = len(workload), max(1, workload.workers)
    drawn = min(count, BATCHES_MAX)
    block = min(2 * window * max(1, round(drawn ** (1 / 3) / (2 * window))), max(1, drawn // BLOCKS_MIN))
    starts = random.integers(count, size=(number, -(-drawn // block)))
    return tuple(workload.select((each[:, None] + np.arange(block)).ravel()[:drawn] % count) for each in starts)

"""Whether a series of numbers is steady, changes once, or drifts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

NUMBERS_MIN = 6
CHANGE_MIN = 0.2
"""A smaller change, relative to the mean, is called steady."""
SIGMAS = 4.0
"""A change must exceed this number of standard errors, for long series. The usual two would be too few, because the
position of the change is chosen to make it as large as possible."""
SHORT_SERIES = 8
"""At this length a change must exceed twice as many standard errors, because the spread is hardly known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """The course of a series."""

    kind: Literal["steady", "changed", "drifted"]
    before: float
    """The mean before a change; the fitted value at the start of a drift; the mean of a steady series."""
    after: float
    """The mean after a change; the fitted value at the end of a drift; the mean of a steady series."""
    at: int = 0
    """Index of the first number after a change."""


def find_trend(numbers: Sequence[float]) -> Trend | None:
    """Return the trend; None for fewer than NUMBERS_MIN numbers."""
    n = len(numbers)
    if n < NUMBERS_MIN:
        return None
    values = np.asarray(numbers, dtype=np.float64)
    mean = float(values.mean())
    at, before, after, step_sse = _best_step(values)
    error = np.sqrt(step_sse / (n - 2) * (1 / at + 1 / (n - at)))
    if abs(after - before) <= max(SIGMAS * (1 + SHORT_SERIES / n) * error, CHANGE_MIN * mean):
        return Trend(kind="steady", before=mean, after=mean)
    slope, level = np.polyfit(np.arange(n), values, 1)
    line_sse = float(((values - level - slope * np.arange(n)) ** 2).sum())
    if line_sse < step_sse:
        return Trend(kind="drifted", before=float(level), after=float(level + slope * (n - 1)))
    return Trend(kind="changed", before=before, after=after, at=at)


def _best_step(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[int, float, float, float]:
    """Fit two constant parts: return where the second begins, the two means, and the sum of squared errors.

    Each part has a tenth of the numbers, and three at least.
    """
    n = len(values)
    edge = max(3, n // 10)
    sums = np.cumsum(values)
    splits = np.arange(edge, n - edge + 1)
    left = sums[splits - 1] / splits
    right = (sums[-1] - sums[splits - 1]) / (n - splits)
    sse = float((values**2).sum()) - left**2 * splits - right**2 * (n - splits)
    best = int(np.argmin(sse))
    return int(splits[best]), float(left[best]), float(right[best]), max(0.0, float(sse[best]))

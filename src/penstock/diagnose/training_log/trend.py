"""Whether a row of numbers stays as it is, changes once, or drifts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

MEASURED_MIN = 6
CHANGE_MIN = 0.2
"""A smaller change of the mean is called steady."""
SIGMAS = 4.0
"""So many standard errors, for many numbers: the place of the change is chosen to look its best."""
FEW = 8
"""With as few numbers as this it takes twice as much: their spread is hardly known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """How it went."""

    kind: Literal["steady", "changed", "drifted"]
    before: float
    """The mean before the change; for a drift, the level at the start; when steady, the mean."""
    after: float
    at: int = 0
    """Index of the first number after a change."""


def trend(numbers: Sequence[float]) -> Trend | None:
    """None where there are too few numbers to tell."""
    n = len(numbers)
    if n < MEASURED_MIN:
        return None
    values = np.asarray(numbers, dtype=np.float64)
    mean = float(values.mean())
    at, before, after, step_sse = _best_step(values)
    error = np.sqrt(step_sse / (n - 2) * (1 / at + 1 / (n - at)))
    if abs(after - before) <= max(SIGMAS * (1 + FEW / n) * error, CHANGE_MIN * mean):
        return Trend(kind="steady", before=mean, after=mean)
    slope, level = np.polyfit(np.arange(n), values, 1)
    line_sse = float(((values - level - slope * np.arange(n)) ** 2).sum())
    if line_sse < step_sse:
        return Trend(kind="drifted", before=float(level), after=float(level + slope * (n - 1)))
    return Trend(kind="changed", before=before, after=after, at=at)


def _best_step(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[int, float, float, float]:
    """The split into two flat parts that leaves the least, each a tenth of the whole and three numbers at least."""
    n = len(values)
    edge = max(3, n // 10)
    sums = np.cumsum(values)
    splits = np.arange(edge, n - edge + 1)
    left = sums[splits - 1] / splits
    right = (sums[-1] - sums[splits - 1]) / (n - splits)
    sse = float((values**2).sum()) - left**2 * splits - right**2 * (n - splits)
    best = int(np.argmin(sse))
    return int(splits[best]), float(left[best]), float(right[best]), max(0.0, float(sse[best]))

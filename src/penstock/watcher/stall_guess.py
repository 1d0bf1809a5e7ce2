"""What a slow batch says by itself: which of the causes that look alike the ready batches speak for."""

from __future__ import annotations

from collections import deque
from typing import Literal, NamedTuple

from penstock.recording.format import StepLine

Kind = Literal["lagging worker", "heavy batch", "all workers behind"]

RECENT = 16
"""Slow batches that have a say."""
FULL = 0.75
EMPTY = 0.1
"""Of what the other workers can hold ready: above FULL they all wait for the awaited one, below EMPTY none has any."""


class StallGuess(NamedTuple):
    """A kind of stall, and how far the stalls of late agree on it."""

    kind: Kind
    score: float
    """Agreeing / (all + 1) of the last 16 slow batches: 0.5 for the first, which may be chance, 0.94 for sixteen."""


class StallHistory:
    """Slow batches of one loader. In-order delivery makes the causes look alike but for the ready count.

    All others full: the awaited worker alone is late. The same one each time: it lags; another each time: their batches
    are heavy now and then. None ready: all are behind, be it for cores, storage or their own work. In between, or where
    nothing is known of the workers: no guess.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._recent: deque[tuple[float | None, int | None]] = deque(maxlen=RECENT)

    def guess(self, step: StepLine) -> StallGuess | None:
        """Of this slow batch, which is remembered for the next. The first of a pass says nothing: workers begin."""
        if step.batch == 0:
            return None
        fullness = self._fullness(step)
        self._recent.append((fullness, step.worker))
        if fullness is None or EMPTY < fullness < FULL:
            return None
        if fullness <= EMPTY:
            return StallGuess(
                "all workers behind", self._score(sum(f is not None and f <= EMPTY for f, _ in self._recent))
            )
        full = [worker for f, worker in self._recent if f is not None and f >= FULL]
        same = full.count(step.worker)
        if 2 * same > len(full):
            return StallGuess("lagging worker", self._score(same))
        return StallGuess("heavy batch", self._score(len(full)))

    def _score(self, agreeing: int) -> float:
        return agreeing / (len(self._recent) + 1)

    def _fullness(self, step: StepLine) -> float | None:
        """Ready batches as a share of what the workers that are not awaited have been asked for."""
        if self._workers < 2 or step.ready is None or step.outstanding is None or step.worker is None:
            return None
        others = step.outstanding - -(-step.outstanding // self._workers)
        return step.ready / others if others > 0 else None

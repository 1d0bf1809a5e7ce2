"""Guesses why a batch was slow, from the number of batches that were ready when it was requested."""

from __future__ import annotations

from collections import deque
from typing import Literal, NamedTuple

from penstock.recording.format import StepLine

Kind = Literal["lagging worker", "heavy batch", "all workers behind"]

RECENT = 16
"""Number of latest slow batches that a guess is based on."""
FULL = 0.75
"""Share of the other workers' tasks that are ready at least, if those workers wait for the awaited one."""
MIN_AGREEING = 3
EMPTY = 0.1
"""Share of the other workers' tasks that are ready at most, if all workers are behind."""


class StallGuess(NamedTuple):
    """A guessed kind of stall."""

    kind: Kind
    sure: bool
    """Whether three or more of the latest slow batches, and two thirds of them, agree: one may be chance."""


class StallHistory:
    """The latest slow batches of one loader.

    Batches are delivered in order, so most symptoms of the three causes are the same. The ready batches differ:

    - The other workers have nearly all of their batches ready: only the awaited worker is late. If it is mostly the
      same worker, that worker lags; if the workers change, some batches are heavy.
    - Almost none is ready: all workers are behind, for lack of cores, because of the storage or by their own work.
    - In between, or if the state of the workers is not known, there is no guess.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._recent: deque[tuple[float | None, int | None]] = deque(maxlen=RECENT)
        """Per slow batch: the ready share of the other workers' tasks, and the awaited worker."""

    def guess(self, step: StepLine) -> StallGuess | None:
        """Remember a slow batch and guess its cause. The first batch of an epoch is ignored: workers start then."""
        if step.batch == 0:
            return None
        ready_share = self._ready_share(step)
        self._recent.append((ready_share, step.worker))
        if ready_share is None or EMPTY < ready_share < FULL:
            return None
        if ready_share <= EMPTY:
            agreeing = sum(share is not None and share <= EMPTY for share, _ in self._recent)
            return StallGuess("all workers behind", self._is_sure(agreeing))
        awaited_workers = [worker for share, worker in self._recent if share is not None and share >= FULL]
        same_worker = awaited_workers.count(step.worker)
        if 2 * same_worker > len(awaited_workers):
            return StallGuess("lagging worker", self._is_sure(same_worker))
        return StallGuess("heavy batch", self._is_sure(len(awaited_workers)))

    def _is_sure(self, agreeing: int) -> bool:
        return agreeing >= MIN_AGREEING and 3 * agreeing >= 2 * len(self._recent)

    def _ready_share(self, step: StepLine) -> float | None:
        """Return the ready batches as a share of the tasks of all workers but the awaited one; None if not known."""
        if self._workers < 2 or step.ready is None or step.outstanding is None or step.worker is None:
            return None
        others_tasks = step.outstanding - -(-step.outstanding // self._workers)
        return step.ready / others_tasks if others_tasks > 0 else None

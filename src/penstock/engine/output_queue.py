"""The queue of complete batches between the scheduler and the training loop; it also knows which slabs are in use."""

from __future__ import annotations

import threading
import time

from penstock.engine.batch import Batch
from penstock.errors import PenstockError

MAX_WAIT_S = 1.0
"""Seconds of one wait at most. Then the condition is checked again, since a lost notification must not hang it."""
WARMUP_BATCHES = 4
"""The first batches of an epoch, for which the training loop always waits. Later ones are begun in that time."""
PERIOD_BATCHES = 8
"""Batches over which the mean period of the training loop is taken."""
ALL_HELD_TIMEOUT_S = 5.0
"""Seconds that a consumer may wait while it holds every slab itself. Only its releasing one can end that wait."""


class OutputQueue:
    """Complete batches: the scheduler's thread adds them, the training loop takes them in order."""

    def __init__(self, slabs: int) -> None:
        self.slabs = slabs
        self._changed = threading.Condition()
        self._complete: dict[int, Batch] = {}
        """Complete batches that have not been taken, by number."""
        self._held: set[int] = set()
        """Slabs that have been delivered and not released."""
        self._first_number = 0
        """The first batch of the current epoch; batches before it will not come."""
        self._failure: BaseException | None = None
        self._closed = False
        self._waited_s = 0.0
        self._waiting: tuple[int, float] | None = None
        """The batch that the training loop waits for, and since when."""
        self._taken_at: float | None = None
        self._period_s = 0.0
        """Seconds between two batches that the training loop takes, a running mean."""

    def put(self, batch: Batch) -> None:
        """Add a complete batch."""
        with self._changed:
            self._complete[batch.request.number] = batch
            self._changed.notify_all()

    def clear(self, first_number: int | None) -> list[Batch]:
        """Begin a new epoch: return the batches that were not taken, and end any wait for batches of the old epoch."""
        with self._changed:
            not_taken = list(self._complete.values())
            self._complete.clear()
            if first_number is not None:
                self._first_number = first_number
            self._changed.notify_all()
        return not_taken

    def fail(self, error: BaseException) -> None:
        """Raise this error in every wait from now on."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    @property
    def failed(self) -> bool:
        """Whether every further wait raises an error."""
        return self._failure is not None

    def close(self) -> None:
        """End all waits: no batch will come any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def release(self, slab: int) -> None:
        """Note that a delivered slab is no longer in use."""
        with self._changed:
            self._held.discard(slab)

    def __len__(self) -> int:
        return len(self._complete)

    def buffered_s(self) -> float:
        """Return for how many seconds the complete batches last, at the pace of the training loop."""
        return len(self._complete) * self._period_s

    def waited_s(self, now: float) -> float:
        """Return the seconds that the training loop has waited for batches, including a wait that has not ended.

        It always waits for the first batches of an epoch, whatever the knobs are, so these waits do not count.
        """
        waiting = self._waiting
        return self._waited_s + (0.0 if waiting is None else self._counted_s(*waiting, now))

    def _counted_s(self, number: int, since: float, now: float) -> float:
        return 0.0 if number < self._first_number + WARMUP_BATCHES else now - since

    def has(self, number: int) -> bool:
        """Return whether `take` would not wait for this batch."""
        with self._changed:
            return number in self._complete and not self._closed

    def take(self, number: int) -> Batch:
        """Return batch `number` when it is complete; raise the engine's failure if there is one."""
        with self._changed:
            self._check_open()  # first: after closing, the memory of complete batches is being released
            if number not in self._complete:
                self._wait_for(number)
            batch = self._complete.pop(number)
            self._held.add(batch.slab)
            self._update_period(time.monotonic())
            return batch

    def _update_period(self, now: float) -> None:
        if self._taken_at is not None:
            period_s = now - self._taken_at
            # pauses for evaluation or checkpoints are not part of the period: they count as twice the mean at most
            period_s = min(period_s, 2 * self._period_s or period_s)
            self._period_s += (period_s - self._period_s) / PERIOD_BATCHES
        self._taken_at = now

    def _wait_for(self, number: int) -> None:
        start = all_held_since = time.monotonic()
        self._waiting = number, start
        try:
            while number not in self._complete:
                self._check(number)
                if len(self._held) < self.slabs:
                    all_held_since = time.monotonic()
                elif time.monotonic() - all_held_since > ALL_HELD_TIMEOUT_S:
                    raise self._all_held_error()
                self._changed.wait(MAX_WAIT_S)
        finally:
            self._waiting = None
            self._waited_s += self._counted_s(number, start, time.monotonic())

    def _check(self, number: int) -> None:
        if self._failure is not None:
            raise self._failure
        self._check_open()
        if number < self._first_number:
            raise PenstockError("another iteration has begun, so this one has ended", stage="deliver")

    def _check_open(self) -> None:
        if self._closed:
            raise PenstockError("the loader has been closed", stage="deliver")

    def _all_held_error(self) -> PenstockError:
        return PenstockError(
            f"all {self.slabs} batches there is memory for are still in use, so the next one cannot be made",
            stage="deliver",
            advice="Copy what you want to keep of a batch (tensor.clone()), or give a larger memory_bytes",
        )

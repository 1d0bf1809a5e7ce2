"""Where finished batches wait for the training loop, and which slabs it still holds."""

from __future__ import annotations

import threading
import time

from penstock.engine.batch import Batch
from penstock.errors import PenstockError

LONGEST_WAIT_S = 1.0
"""How long anybody sleeps at most before looking again: a wait without an owner would have no way out."""
UNDER_WAY = 4
"""Batches of an epoch until what follows was begun while they were made."""
PACE = 8
"""Batches over which the loop's pace is a mean."""
HOARD_S = 5.0
"""How long a consumer that waits while it holds every slab is given to let one go: nothing else can move then."""


class OutputQueue:
    """Between two threads: the conductor puts batches here, the training loop takes them in order."""

    def __init__(self, slabs: int) -> None:
        self.slabs = slabs
        self._changed = threading.Condition()
        self._complete: dict[int, Batch] = {}
        self._held: set[int] = set()
        """Slabs that have been delivered and not released."""
        self._first_number = 0
        """Of the epoch under way: batches before it will not come."""
        self._failure: BaseException | None = None
        self._closed = False
        self._waited_s = 0.0
        self._waiting: tuple[int, float] | None = None
        """For which batch, and since when."""
        self._taken_at: float | None = None
        self._period_s = 0.0
        """From one taking to the next, a running mean."""

    def put(self, batch: Batch) -> None:
        """A batch is complete."""
        with self._changed:
            self._complete[batch.request.number] = batch
            self._changed.notify_all()

    def clear(self, first_number: int | None) -> list[Batch]:
        """A new epoch begins: what nobody took, and who still waits for it hears that it will not come."""
        with self._changed:
            left = list(self._complete.values())
            self._complete.clear()
            if first_number is not None:
                self._first_number = first_number
            self._changed.notify_all()
        return left

    def fail(self, error: BaseException) -> None:
        """Whoever waits, now or later, gets this instead."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    @property
    def failed(self) -> bool:
        """Whether there is something that whoever waits will get."""
        return self._failure is not None

    def close(self) -> None:
        """Nothing will come any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def release(self, slab: int) -> None:
        """A delivered slab is no longer looked at."""
        with self._changed:
            self._held.discard(slab)

    def __len__(self) -> int:
        return len(self._complete)

    def lasts_s(self) -> float:
        """How long the training loop can go on with what is here, at its pace: until then nobody waits for us."""
        return len(self._complete) * self._period_s

    def waited_s(self, now: float) -> float:
        """Seconds that the training loop has spent waiting for a batch, this moment's wait included.

        For the first batches of an epoch it always waits, whatever our knobs: that does not count.
        """
        waiting = self._waiting
        return self._waited_s + (0.0 if waiting is None else self._counted_s(*waiting, now))

    def _counted_s(self, number: int, since: float, now: float) -> float:
        return 0.0 if number < self._first_number + UNDER_WAY else now - since

    def has(self, number: int) -> bool:
        """Whether `take` would not wait."""
        with self._changed:
            return number in self._complete and not self._closed

    def take(self, number: int) -> Batch:
        """Batch `number`, when it is complete; the engine's failure, if it has one."""
        with self._changed:
            self._check_open()  # first: what is complete lies in memory that is being given back
            if number not in self._complete:
                self._wait_for(number)
            batch = self._complete.pop(number)
            self._held.add(batch.slab)
            self._keep_pace(time.monotonic())
            return batch

    def _keep_pace(self, now: float) -> None:
        if self._taken_at is not None:
            period_s = now - self._taken_at
            # a pause of the loop, to evaluate or to save, says nothing of its pace: one such counts as twice the mean
            period_s = min(period_s, 2 * self._period_s or period_s)
            self._period_s += (period_s - self._period_s) / PACE
        self._taken_at = now

    def _wait_for(self, number: int) -> None:
        start = hoarding_since = time.monotonic()
        self._waiting = number, start
        try:
            while number not in self._complete:
                self._check(number)
                if len(self._held) < self.slabs:
                    hoarding_since = time.monotonic()
                elif time.monotonic() - hoarding_since > HOARD_S:
                    raise self._hoarded()
                self._changed.wait(LONGEST_WAIT_S)
        finally:
            self._waiting = None
            self._waited_s += self._counted_s(number, start, time.monotonic())

    def _check(self, number: int) -> None:
        if self._failure is not None:
            raise self._failure
        self._check_open()
        if number < self._first_number:
            raise PenstockError("another pass has begun since: this one is given up", stage="deliver")

    def _check_open(self) -> None:
        if self._closed:
            raise PenstockError("the loader has been closed", stage="deliver")

    def _hoarded(self) -> PenstockError:
        return PenstockError(
            f"all {self.slabs} batches there is memory for are still in use, so the next one cannot be made",
            stage="deliver",
            advice="Copy what you want to keep of a batch (tensor.clone()), or give a larger memory_bytes",
        )

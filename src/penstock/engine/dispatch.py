"""Who gets which slots: the earliest batch first, to whoever is free, in pieces of some milliseconds."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

import numpy as np

from penstock.core.contracts import BlockSource, Task, TaskResult
from penstock.core.types import Ids
from penstock.engine.batch import Batch
from penstock.engine.block_cache import BlockCache
from penstock.engine.workers import ProcessWorker, Worker
from penstock.errors import WorkerCrash

TASK_S = 0.016
"""Work per task: long enough that handing it over costs little, short enough that nobody waits long for the last.
Every task costs the training's process, in time that its loop may want, so tasks are as long as can be: where batches
are ready for the loop, nobody waits for this one; where none is, all that are open are spread over everybody."""
LEAST_TASK_S = 0.002
"""Below this, handing over would cost more than is gained by spreading a batch over everybody."""
DEPTH = 2
"""Tasks at a worker: one under way and one waiting, so that it does not idle for want of us."""
SLOW = 3.0
"""A worker this many times slower than the others gets one task at a time: what waits there waits long."""
MAX_STILLBORN = 3
"""Workers that die before they are ready, in a row, before we give up: something is wrong with all of them."""
MESSAGE_BYTES = 64 << 10
"""A task's message at most: DEPTH of them fit into a pipe, so handing over never waits for the worker."""
FIRST_ROWS = 64
"""Samples in a task, at most, until we know how long a row is."""
GRACE_S = 0.5
"""From asking a stuck worker for its stack until it is killed: time to print."""


@dataclass(slots=True, eq=False)
class AssignedTask:
    """A task at a worker."""

    task: Task
    batch: Batch
    slots: Ids
    strikes: int
    """Workers that died with it."""
    since: float = 0.0
    """When it got to the head of its worker's line."""


@dataclass(slots=True, eq=False)
class WorkerSlot:
    """A worker and what it has been given, the first of which is under way."""

    worker: Worker
    given: deque[AssignedTask] = field(default_factory=deque)
    sample_s: float = 0.0
    """Seconds per sample, a running mean."""
    stopgap: bool = False
    """A thread that stands in for a process that is still starting."""
    retiring: bool = False
    """Gets nothing more, and leaves when it has nothing left."""
    warned: float | None = None
    """When it was asked for its stack, if it is overdue."""


class Dispatch:
    """Owned by the conductor's thread."""

    def __init__(self, supply: BlockSource, slab_bytes: int, deadline_s: float, hire: Callable[[], Worker]) -> None:
        self.seats: list[WorkerSlot] = []
        self.tasks = self.deaths = self.under_way = 0
        self.busy_s = 0.0
        self.task_s = TASK_S
        self.sample_s = 0.0
        """Seconds per sample over all workers, a running mean."""
        self._supply = supply
        self._slab_bytes = slab_bytes
        self._deadline_s = deadline_s
        self._hire = hire
        self._again: deque[AssignedTask] = deque()
        self._leaving: list[Worker] = []
        self._dismissed = threading.Event()
        self._stillborn = 0
        self._most_rows = FIRST_ROWS

    def seat_of(self, worker: object) -> WorkerSlot:
        """The seat of a worker."""
        return next(seat for seat in self.seats if seat.worker is worker)

    def pipes(self) -> dict[int, WorkerSlot]:
        """What to listen to."""
        return {seat.worker.fileno(): seat for seat in self.seats if isinstance(seat.worker, ProcessWorker)}

    def seat(self, worker: Worker, *, stopgap: bool = False) -> None:
        """Let a worker take part."""
        self.seats.append(WorkerSlot(worker, stopgap=stopgap))

    def add_workers(self, count: int) -> None:
        """More workers; nobody comes to stay once all have been sent home."""
        for _ in range(count):
            if self._dismissed.is_set():
                return
            worker = self._hire()
            self.seat(worker)
            if self._dismissed.is_set():  # meanwhile, by another thread
                worker.stop()

    def relieve(self) -> None:
        """A process is ready: one that stood in for it may go."""
        seat = next((seat for seat in self.seats if seat.stopgap and not seat.retiring), None)
        if seat is not None:
            seat.retiring = True
            self._let_go(seat)

    def _let_go(self, seat: WorkerSlot) -> None:
        if seat.retiring and not seat.given:
            seat.worker.stop()
            self.seats.remove(seat)
            self._leaving.append(seat.worker)

    @property
    def settled(self) -> bool:
        """Whether everybody is here to stay and ready."""
        return all(seat.worker.ready and not seat.stopgap for seat in self.seats)

    @property
    def working(self) -> tuple[int, int]:
        """How many workers are at a task, and how many could be."""
        return sum(bool(seat.given) for seat in self.seats), sum(seat.worker.ready for seat in self.seats)

    # -- giving out ------------------------------------------------------------------------------------------

    def give_out(self, batches: Collection[Batch], residency: BlockCache, spare_s: float = 0.0) -> None:
        """Fill every free place at a worker, emptiest workers first, with the earliest slots there are.

        The training loop has batches for so long.
        """
        for depth in range(DEPTH):
            for seat in self.seats:
                if (
                    seat.worker.ready
                    and not seat.retiring
                    and len(seat.given) == depth
                    and not self._too_slow(seat, depth)
                ):
                    given = self._next(batches, residency, depth, spare_s)
                    if given is None:
                        return
                    self._send(seat, given)

    def _too_slow(self, seat: WorkerSlot, depth: int) -> bool:
        return depth > 0 and seat.sample_s > SLOW * self.sample_s > 0

    def _next(
        self, batches: Collection[Batch], residency: BlockCache, depth: int, spare_s: float
    ) -> AssignedTask | None:
        while self._again:
            given = self._again.popleft()
            if not given.batch.abandoned:
                return self._repeat(given, residency)
        for batch in batches:
            if not batch.waiting or (batch.request.one_worker and depth > 0):
                continue  # a whole batch must not wait behind another one while somebody else may become free
            size = len(batch.request.samples)
            waited_for = size if batch.request.first_of_epoch else size * len(batches)
            slots = batch.take(size if batch.request.one_worker else self._chunk(waited_for, spare_s))
            return self._task(batch, slots, residency, strikes=0)
        return None

    def _chunk(self, samples: int, spare_s: float) -> int:
        """Samples per task: `task_s` of work, but so many are spread over all workers while somebody waits for them."""
        standing_in = sum(seat.stopgap for seat in self.seats)
        hands = max(1, standing_in, len(self.seats) - standing_in)  # not both: the ones go as the others come
        fair = max(1, samples // (2 * hands))
        if self.sample_s == 0:
            return min(self._most_rows, fair)
        at_once = max(LEAST_TASK_S, spare_s / 2)  # by then, half of what is ready is left
        least, most = (round(seconds / self.sample_s) for seconds in (min(at_once, self.task_s), self.task_s))
        return max(1, min(self._most_rows, max(least, min(fair, most))))

    def _task(self, batch: Batch, slots: Ids, residency: BlockCache, strikes: int) -> AssignedTask:
        bases = residency.pin_all(batch.blocks[slots])
        rows = self._supply.task_rows(batch.request.samples[slots], slots, bases)
        self._most_rows = max(1, MESSAGE_BYTES // rows[0].nbytes)
        self.tasks += 1
        task = Task(
            self.tasks, batch.slab * self._slab_bytes, batch.request.epoch, np.ascontiguousarray(rows, np.int64)
        )
        return AssignedTask(task, batch, slots, strikes)

    def _repeat(self, given: AssignedTask, residency: BlockCache) -> AssignedTask:
        given.batch.under_way += len(given.slots)
        return self._task(given.batch, given.slots, residency, given.strikes)

    def _send(self, seat: WorkerSlot, given: AssignedTask) -> None:
        given.since = time.monotonic()
        seat.given.append(given)
        self.under_way += 1
        seat.worker.send(given.task)

    # -- taking back -----------------------------------------------------------------------------------------

    def finished(self, seat: WorkerSlot, answer: TaskResult) -> AssignedTask:
        """Note an answer; workers answer in the order in which they were asked."""
        given = seat.given.popleft()
        assert given.task.number == answer.number
        seat.warned = None
        self.under_way -= 1
        if seat.given:
            seat.given[0].since = time.monotonic()
        per_sample = answer.busy_s / len(given.slots)
        seat.sample_s = _mean(seat.sample_s, per_sample)
        self.sample_s = _mean(self.sample_s, min(per_sample, SLOW * self.sample_s or per_sample))
        self.busy_s += answer.busy_s
        self._let_go(seat)
        return given

    def overdue(self) -> list[WorkerSlot]:
        """Workers that have been at one task for longer than the deadline, and have had time to print their stack."""
        now = time.monotonic()
        late = [s for s in self.seats if s.given and now - s.given[0].since > self._deadline_s]
        for seat in late:
            if seat.warned is None:
                seat.warned = now
                seat.worker.show_stack()
        return [seat for seat in late if seat.warned is not None and now - seat.warned > GRACE_S]

    def bury(self, seat: WorkerSlot, crash: WorkerCrash) -> list[AssignedTask]:
        """Take a dead worker out, put another in; returns what it had, cut into suspects."""
        self.deaths += 1
        self._stillborn = 0 if seat.worker.ready else self._stillborn + 1
        if self._stillborn >= MAX_STILLBORN:
            crash.advice = "Workers cannot start: their own error is on stderr"
            raise crash
        if not seat.worker.replaceable:
            crash.advice = "A thread cannot be killed: use executor='process', or a longer timeout_s"
            raise crash
        seat.worker.stop()
        if not seat.worker.join(0.0):  # what it does then, it does to memory that would be another batch's
            crash.advice = "It cannot be killed: it waits for a disk or a file server that does not answer"
            raise crash
        self.seats.remove(seat)
        self.under_way -= len(seat.given)
        self.add_workers(1)
        suspects = [piece for given in list(seat.given)[:1] for piece in _singly(given)]
        return suspects + list(seat.given)[1:]

    def retry(self, given: AssignedTask) -> None:
        """Do it again, before anything else."""
        self._again.append(given)

    @property
    def retries(self) -> int:
        """Tasks that wait to be done again."""
        return len(self._again)

    def forget_retries(self) -> None:
        """A new epoch has begun."""
        self._again.clear()

    def dismiss_all(self, timeout_s: float) -> None:
        """Everybody goes home, and is waited for, but not for ever."""
        self._dismissed.set()
        deadline = time.monotonic() + timeout_s
        workers = [seat.worker for seat in self.seats]
        for worker in workers:
            worker.stop()
        for worker in (*self._leaving, *workers):
            worker.join(max(0.0, deadline - time.monotonic()))
        self.seats.clear()
        self._leaving.clear()


def _singly(given: AssignedTask) -> list[AssignedTask]:
    """One for each sample, each with one more strike; a batch that may not be split stays whole."""
    if given.batch.request.one_worker:
        return [replace(given, strikes=given.strikes + 1)]
    return [
        AssignedTask(given.task, given.batch, given.slots[at : at + 1], given.strikes + 1)
        for at in range(len(given.slots))
    ]


def _mean(old: float, new: float) -> float:
    return new if old == 0 else 0.9 * old + 0.1 * new

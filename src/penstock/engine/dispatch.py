"""Assigns slots of batches to workers: the earliest batch first, idle workers first, a few milliseconds at a time."""

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
"""Seconds of work per task: long enough that sending it costs little, short enough that no batch waits long for its
last task. Every task takes time of the training's process, which its loop may need, so tasks are as long as possible:
where batches are ready for the training loop, it does not wait for this one; where none is, all open batches are spread
over all workers."""
MIN_TASK_S = 0.002
"""Below this, sending tasks would cost more than is gained by spreading a batch over all workers."""
TASKS_PER_WORKER = 2
"""Tasks at a worker: one that it runs, and one that waits, so that it does not idle until the scheduler reacts."""
SLOW_FACTOR = 3.0
"""A worker that is this many times slower than the others gets one task at a time: a second one would wait long."""
MAX_FAILED_STARTS = 3
"""Workers in a row that may die before they are ready; then the engine fails, since something is wrong with all."""
MAX_MESSAGE_BYTES = 64 << 10
"""Size of a task's message: TASKS_PER_WORKER of them fit into a pipe, so sending never waits for the worker."""
FIRST_ROWS = 64
"""Samples in a task, at most, until the length of a row is known."""
STACK_GRACE_S = 0.5
"""Seconds that a stuck worker has to print its stack before it is killed."""


@dataclass(slots=True, eq=False)
class AssignedTask:
    """A task that a worker has, with the slots of its batch."""

    task: Task
    batch: Batch
    slots: Ids
    crashes: int
    """Workers that died while they ran it."""
    since: float = 0.0
    """When it became the first task of its worker."""


@dataclass(slots=True, eq=False)
class WorkerSlot:
    """A worker and its tasks; it runs the first of them, and the others wait."""

    worker: Worker
    tasks: deque[AssignedTask] = field(default_factory=deque)
    sample_s: float = 0.0
    """Seconds per sample, a running mean."""
    stopgap: bool = False
    """Whether it is a thread that works in the place of a process that is still starting."""
    retiring: bool = False
    """Whether it gets no more tasks, and is removed when it has none left."""
    stack_requested_at: float | None = None
    """When an overdue worker was asked to print its stack."""


class Dispatch:
    """The workers and their tasks. Only the scheduler's thread uses it, except for `stop_all`."""

    def __init__(
        self, block_source: BlockSource, slab_bytes: int, timeout_s: float, make_worker: Callable[[], Worker]
    ) -> None:
        self.workers: list[WorkerSlot] = []
        self.tasks = self.deaths = self.in_progress = 0
        """Tasks made, workers that died, and tasks that are with workers now."""
        self.busy_s = 0.0
        """Seconds that workers spent on tasks."""
        self.task_s = TASK_S
        """Seconds of work per task; the autotuner changes it."""
        self.sample_s = 0.0
        """Seconds per sample over all workers, a running mean."""
        self._block_source = block_source
        self._slab_bytes = slab_bytes
        self._timeout_s = timeout_s
        self._make_worker = make_worker
        self._retries: deque[AssignedTask] = deque()
        self._removed: list[Worker] = []
        """Workers that were stopped and may not have ended yet."""
        self._stopped = threading.Event()
        self._failed_starts = 0
        self._max_rows = FIRST_ROWS

    def slot_of(self, worker: object) -> WorkerSlot:
        """Return the slot of a worker."""
        return next(slot for slot in self.workers if slot.worker is worker)

    def pipes(self) -> dict[int, WorkerSlot]:
        """Return the descriptors to wait on, each with its worker's slot."""
        return {slot.worker.fileno(): slot for slot in self.workers if isinstance(slot.worker, ProcessWorker)}

    def add(self, worker: Worker, *, stopgap: bool = False) -> None:
        """Let a worker take part."""
        self.workers.append(WorkerSlot(worker, stopgap=stopgap))

    def add_workers(self, count: int) -> None:
        """Make more workers, unless all have been stopped."""
        for _ in range(count):
            if self._stopped.is_set():
                return
            worker = self._make_worker()
            self.add(worker)
            if self._stopped.is_set():  # meanwhile, by another thread
                worker.stop()

    def retire_stopgap(self) -> None:
        """Retire one of the threads that work in the place of processes, because a process is ready."""
        slot = next((slot for slot in self.workers if slot.stopgap and not slot.retiring), None)
        if slot is not None:
            slot.retiring = True
            self._remove_if_retired(slot)

    def _remove_if_retired(self, slot: WorkerSlot) -> None:
        if slot.retiring and not slot.tasks:
            slot.worker.stop()
            self.workers.remove(slot)
            self._removed.append(slot.worker)

    @property
    def settled(self) -> bool:
        """Whether all workers are ready and none of them is a stopgap."""
        return all(slot.worker.ready and not slot.stopgap for slot in self.workers)

    @property
    def busy_and_ready(self) -> tuple[int, int]:
        """How many workers have a task, and how many are ready for one or have one."""
        return sum(bool(slot.tasks) for slot in self.workers), sum(slot.worker.ready for slot in self.workers)

    # -- assigning ---------------------------------------------------------------------------------------------

    def assign(self, batches: Collection[Batch], block_cache: BlockCache, buffered_s: float = 0.0) -> None:
        """Give every worker up to TASKS_PER_WORKER tasks, idle workers first, with the earliest slots that are ready.

        `buffered_s` is how long the training loop can go on with complete batches.
        """
        for depth in range(TASKS_PER_WORKER):
            for slot in self.workers:
                if (
                    slot.worker.ready
                    and not slot.retiring
                    and len(slot.tasks) == depth
                    and not self._is_too_slow(slot, depth)
                ):
                    task = self._next_task(batches, block_cache, depth, buffered_s)
                    if task is None:
                        return
                    self._send(slot, task)

    def _is_too_slow(self, slot: WorkerSlot, depth: int) -> bool:
        return depth > 0 and slot.sample_s > SLOW_FACTOR * self.sample_s > 0

    def _next_task(
        self, batches: Collection[Batch], block_cache: BlockCache, depth: int, buffered_s: float
    ) -> AssignedTask | None:
        while self._retries:
            task = self._retries.popleft()
            if not task.batch.abandoned:
                return self._repeat(task, block_cache)
        for batch in batches:
            request = batch.request
            if not batch.ready_count or (request.one_worker and depth > 0):
                continue  # a batch for one worker must not wait behind another one while a worker may become idle
            size = len(request.samples)
            awaited = size if request.first_of_epoch else size * len(batches)
            slots = batch.take(size if request.one_worker else self._samples_per_task(awaited, buffered_s))
            return self._make_task(batch, slots, block_cache, crashes=0)
        return None

    def _samples_per_task(self, awaited: int, buffered_s: float) -> int:
        """Return how many samples make `task_s` of work.

        They are fewer while the training loop waits: then the `awaited` samples are spread over all workers.
        """
        stopgaps = sum(slot.stopgap for slot in self.workers)
        workers = max(1, stopgaps, len(self.workers) - stopgaps)  # not the sum: processes replace the stopgaps
        fair = max(1, awaited // (2 * workers))
        if self.sample_s == 0:
            return min(self._max_rows, fair)
        least_s = max(MIN_TASK_S, buffered_s / 2)  # when such a task ends, half of the buffered batches are left
        least, most = (round(seconds / self.sample_s) for seconds in (min(least_s, self.task_s), self.task_s))
        return max(1, min(self._max_rows, max(least, min(fair, most))))

    def _make_task(self, batch: Batch, slots: Ids, block_cache: BlockCache, crashes: int) -> AssignedTask:
        block_starts = block_cache.pin(batch.blocks[slots])
        rows = self._block_source.task_rows(batch.request.samples[slots], slots, block_starts)
        self._max_rows = max(1, MAX_MESSAGE_BYTES // rows[0].nbytes)
        self.tasks += 1
        slab_start = batch.slab * self._slab_bytes
        rows, request = np.ascontiguousarray(rows, np.int64), batch.request
        task = Task(self.tasks, slab_start, request.epoch, rows, request.padding)
        return AssignedTask(task, batch, slots, crashes)

    def _repeat(self, task: AssignedTask, block_cache: BlockCache) -> AssignedTask:
        task.batch.in_progress += len(task.slots)
        return self._make_task(task.batch, task.slots, block_cache, task.crashes)

    def _send(self, slot: WorkerSlot, task: AssignedTask) -> None:
        task.since = time.monotonic()
        slot.tasks.append(task)
        self.in_progress += 1
        slot.worker.send(task.task)

    # -- results, and workers that fail --------------------------------------------------------------------------

    def finish(self, slot: WorkerSlot, result: TaskResult) -> AssignedTask:
        """Note a result, and return its task; workers return results in the order of their tasks."""
        task = slot.tasks.popleft()
        assert task.task.number == result.number
        slot.stack_requested_at = None
        self.in_progress -= 1
        if slot.tasks:
            slot.tasks[0].since = time.monotonic()
        sample_s = result.busy_s / len(task.slots)
        slot.sample_s = _running_mean(slot.sample_s, sample_s)
        self.sample_s = _running_mean(self.sample_s, min(sample_s, SLOW_FACTOR * self.sample_s or sample_s))
        self.busy_s += result.busy_s
        self._remove_if_retired(slot)
        return task

    def overdue(self) -> list[WorkerSlot]:
        """Return the workers whose task has exceeded the timeout, after they have had time to print their stack."""
        now = time.monotonic()
        late = [slot for slot in self.workers if slot.tasks and now - slot.tasks[0].since > self._timeout_s]
        for slot in late:
            if slot.stack_requested_at is None:
                slot.stack_requested_at = now
                slot.worker.print_stack()
        return [
            slot
            for slot in late
            if slot.stack_requested_at is not None and now - slot.stack_requested_at > STACK_GRACE_S
        ]

    def replace_dead(self, slot: WorkerSlot, crash: WorkerCrash) -> list[AssignedTask]:
        """Replace a dead worker by a new one, and return its tasks.

        The task that it ran is returned as one task for each sample, so that a sample that kills workers is found.
        """
        self.deaths += 1
        self._failed_starts = 0 if slot.worker.ready else self._failed_starts + 1
        if self._failed_starts >= MAX_FAILED_STARTS:
            crash.advice = "Workers cannot start: their own error is on stderr"
            raise crash
        if not slot.worker.replaceable:
            crash.advice = "A thread cannot be killed: use executor='process', or a longer timeout_s"
            raise crash
        slot.worker.stop()
        if not slot.worker.join(0.0):  # if it continued, it would write to memory that holds another batch by then
            crash.advice = "It cannot be killed: it waits for a disk or a file server that does not answer"
            raise crash
        self.workers.remove(slot)
        self.in_progress -= len(slot.tasks)
        self.add_workers(1)
        suspects = [part for task in list(slot.tasks)[:1] for part in _one_by_one(task)]
        return suspects + list(slot.tasks)[1:]

    def retry(self, task: AssignedTask) -> None:
        """Let the task be done again, before any other."""
        self._retries.append(task)

    @property
    def retries(self) -> int:
        """Tasks that wait to be done again."""
        return len(self._retries)

    def clear_retries(self) -> None:
        """Forget the tasks to be done again, because a new epoch has begun."""
        self._retries.clear()

    def stop_all(self, timeout_s: float) -> None:
        """Stop the workers and join them, with a timeout."""
        self._stopped.set()
        deadline = time.monotonic() + timeout_s
        workers = [slot.worker for slot in self.workers]
        for worker in workers:
            worker.stop()
        for worker in (*self._removed, *workers):
            worker.join(max(0.0, deadline - time.monotonic()))
        self.workers.clear()
        self._removed.clear()


def _one_by_one(task: AssignedTask) -> list[AssignedTask]:
    """Return one task per sample, with one more crash each; a task of a batch for one worker is not divided."""
    if task.batch.request.one_worker:
        return [replace(task, crashes=task.crashes + 1)]
    return [
        AssignedTask(task.task, task.batch, task.slots[index : index + 1], task.crashes + 1)
        for index in range(len(task.slots))
    ]


def _running_mean(old: float, new: float) -> float:
    return new if old == 0 else 0.9 * old + 0.1 * new

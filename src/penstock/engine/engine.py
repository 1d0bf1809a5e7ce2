"""The engine as the loader uses it: memory, readers, workers and scheduler, started and stopped together."""

from __future__ import annotations

import itertools
import os
import pickle
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

from penstock.core.contracts import BlockSource, EpochRequest, TaskResult, WorkerProgram
from penstock.core.stats import EngineStats
from penstock.engine.arena import Arena
from penstock.engine.autotune import Autotuner, Knob, Knobs
from penstock.engine.batch import Batch
from penstock.engine.block_cache import BlockCache
from penstock.engine.dispatch import TASK_S, Dispatch
from penstock.engine.output_queue import OutputQueue
from penstock.engine.readers import Readers
from penstock.engine.scheduler import Scheduler
from penstock.engine.shared_memory import SharedMemory
from penstock.engine.worker_main import Prefaulter
from penstock.engine.workers import ProcessWorker, ThreadWorker, Worker, WorkerMemory
from penstock.errors import PenstockError, SettingError

STOP_TIMEOUT_S = 1.5
"""Seconds to wait for threads on closing. A process is killed; a thread in a slow read or decode may live longer."""
LOOKAHEAD = 4
"""Batches ahead of the training loop at first; the autotuner adds more where single slow samples make it wait."""
SAMPLES_PER_WORKER = 16
"""Samples ahead for each worker, so more batches where they have few samples: a worker has two tasks, of samples of a
few batches, and as many samples must be there when it has done them."""
LOOKAHEAD_BYTES = 1 << 30
"""Bytes of batches ahead at first, so fewer batches where they are large, but at least two: touching new memory takes
about as long as reading into it."""
SMALL_LOOKAHEAD, SMALL_LOOKAHEAD_BYTES = 16, 64 << 20
"""Batches ahead at first where all of them take no more than these bytes: the longer the training loop can go on with
complete batches, the less often the scheduler runs beside it, and steps on small batches are short."""
_ADVICE = "Define functions and classes in a module, or use executor='thread'"


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """The size of an engine. The loader makes it from the memory budget and the user's settings."""

    executor: Literal["process", "thread"]
    workers: int
    readers: int
    slabs: int
    slab_bytes: int
    arena_bytes: int
    timeout_s: float
    """Seconds after which a task counts as stuck."""
    max_workers: int = 0
    """The most workers that the autotuner may use; 0 if their number is fixed."""
    max_readers: int = 0
    """The most reads in flight that the autotuner may use; 0 if their number is fixed."""
    stopgaps: bool = False
    """Whether threads of this process may decode while worker processes start; not if workers run code of the user."""
    batch_size: int = 0
    """Samples that fit into a slab; 0 if that is not known."""
    filled_bytes: int = 0
    """The first bytes of each slab, which every batch fills, so that their pages can be created in one call."""
    cores: tuple[int, ...] = ()
    """Worker i is bound to core i of these, in turn; empty: the system places workers."""

    def knobs(self) -> Knobs:
        """Return the settings that the autotuner may change, with their ranges."""
        max_lookahead = max(1, self.slabs - 1)
        samples = SAMPLES_PER_WORKER * max(self.workers, self.max_workers)
        wanted = max(LOOKAHEAD, -(-samples // self.batch_size) if self.batch_size else 0)
        usual = min(wanted, max(2, LOOKAHEAD_BYTES // self.slab_bytes))
        lookahead = min(max(usual, min(SMALL_LOOKAHEAD, SMALL_LOOKAHEAD_BYTES // self.slab_bytes)), max_lookahead)
        min_readers = 1 if self.max_readers else self.readers
        return Knobs(
            readers=Knob(self.readers, min_readers, max(self.readers, self.max_readers)),
            workers=Knob(self.workers, self.workers, max(self.workers, self.max_workers)),
            lookahead=Knob(lookahead, 1, max_lookahead),
            task_s=TASK_S,
        )


class Engine:
    """A running engine. It owns every thread, process, descriptor and byte that it uses; `close` releases them."""

    def __init__(self, block_source: BlockSource, program: WorkerProgram, plan: EnginePlan) -> None:
        self.plan = plan
        self._program = program
        self._worker_numbers = itertools.count()
        self._closed = False
        self._pid = os.getpid()
        pickled, self._main_path = pickle_program(program) if plan.executor == "process" else (b"", None)
        self._pickled = SharedMemory.from_bytes(pickled, "program")
        self.arena = Arena(plan.arena_bytes)
        self.slabs = SharedMemory.create(plan.slabs * plan.slab_bytes, "slabs")
        self._memory = WorkerMemory(self.arena.memory, self.slabs, Prefaulter(self.slabs, plan.filled_bytes))
        self.readers = Readers(block_source, self.arena.memory, lambda fetched: self.scheduler.block_fetched(fetched))
        block_cache = BlockCache(self.arena, self.readers, block_source, plan.readers)
        dispatch = Dispatch(block_source, plan.slab_bytes, plan.timeout_s, self._make_worker)
        output_queue = OutputQueue(plan.slabs)
        self.autotuner = Autotuner(block_cache, self.readers, dispatch, output_queue, plan.knobs())
        self.scheduler = Scheduler(block_source, block_cache, dispatch, output_queue, self.autotuner)
        try:
            self.readers.resize(plan.readers)
            if plan.stopgaps and plan.executor == "process":
                for number in range(plan.workers):
                    dispatch.add(self._make_thread(f"stopgap {number}"), stopgap=True)
                self.scheduler.defer(lambda: dispatch.add_workers(plan.workers))
            else:
                dispatch.add_workers(plan.workers)
            self.scheduler.start()
        except BaseException:
            self.close()
            raise

    def _make_worker(self) -> Worker:
        number = next(self._worker_numbers)
        name = f"worker {number}"
        if self.plan.executor == "thread":
            return self._make_thread(name)
        core = {self.plan.cores[number % len(self.plan.cores)]} if self.plan.cores else None
        return ProcessWorker(name, self._pickled, self._memory, self._main_path, core)

    def _make_thread(self, name: str) -> ThreadWorker:
        return ThreadWorker(name, self._program, self._memory, self._on_thread_result)

    def _on_thread_result(self, worker: ThreadWorker, result: TaskResult) -> None:
        self.scheduler.task_done(worker, result)  # found at each call, since threads are made before the scheduler runs

    @property
    def is_ours(self) -> bool:
        """Whether it runs in this process: a fork has none of its threads, and perhaps locks that stay locked."""
        return self._pid == os.getpid()

    def begin(self, epoch: EpochRequest) -> None:
        """Begin an epoch."""
        self._check_ours()
        self.scheduler.begin(epoch)

    def wait_for(self, number: int) -> Batch:
        """Return batch `number` when it is complete."""
        self._check_ours()
        self.scheduler.wake_for_released_slabs()  # before a wait
        return self.scheduler.output_queue.take(number)

    def _check_ours(self) -> None:
        if not self.is_ours:
            raise PenstockError(
                "this process was forked from the one that the loader runs in",
                stage="deliver",
                advice="Make a loader in each process, or close() it here before the next iteration",
            )

    def has(self, number: int) -> bool:
        """Return whether batch `number` is complete."""
        return self.scheduler.output_queue.has(number)

    @property
    def failed(self) -> bool:
        """Whether it has failed, so that no further batch will be complete."""
        return self.scheduler.output_queue.failed

    def is_settled(self) -> bool:
        """Return whether all workers have started; before that, their speed cannot be known."""
        return self.scheduler.dispatch.settled

    def stats(self) -> EngineStats:
        """Return the counters and knobs at this moment."""
        return self.autotuner.stats(time.monotonic())

    def close(self) -> None:
        """Stop everything. A second call does nothing, nor does a call in a process that was forked from this one."""
        if self._closed or not self.is_ours:
            return
        self._closed = True
        deadline = time.monotonic() + STOP_TIMEOUT_S
        with ExitStack() as cleanup:  # all steps run, even if an interrupt ends one of them; the last is called first
            for memory in (self.slabs, self.arena, self._pickled):
                cleanup.callback(memory.close)
            cleanup.callback(lambda: self.readers.join(max(0.0, deadline - time.monotonic())))
            cleanup.callback(self.readers.stop)  # after the scheduler, which may add readers
            cleanup.callback(self.scheduler.stop, STOP_TIMEOUT_S)


def pickle_program(program: WorkerProgram) -> tuple[bytes, str | None]:
    """Return the pickled program, and the path of the user's script if the program refers to what is defined there."""
    try:
        data = pickle.dumps(program)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise SettingError(
            f"the work cannot be sent to worker processes: {error}", stage="plan", advice=_ADVICE
        ) from error
    if b"__main__" not in data:
        return data, None
    path: str | None = getattr(sys.modules.get("__main__"), "__file__", None)
    if path is None:
        raise SettingError("something was defined in an interactive session", stage="plan", advice=_ADVICE)
    return data, os.path.abspath(path)

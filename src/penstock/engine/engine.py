"""The engine as the loader holds it: memory, readers, workers and conductor, started and stopped as one."""

from __future__ import annotations

import itertools
import os
import pickle
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

from penstock.core.contracts import BlockSource, EpochRequest, WorkerProgram
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

STOP_S = 1.5
"""For threads to end when we stop. A process is killed; a thread in a slow read or decode may outlive us."""
LOOK_AHEAD = 4
"""Batches ahead of the training loop to begin with; more follow where single slow samples make it wait."""
SAMPLES_AHEAD = 16
"""For each worker, so more batches where they are of few samples: two tasks are in its hands, of samples of a few
batches, and as many again have to be there when it comes back."""
AHEAD_BYTES = 1 << 30
"""Of large batches fewer, but two: touching new memory takes about as long as reading into it."""
MANY_AHEAD, LITTLE_BYTES = 16, 64 << 20
"""Of small batches more, as far as they take this little: the longer a loop can go on with what is ready, the less
often we wake beside it, and a loop on small batches has short steps."""
_ADVICE = "Define functions and classes in a module, or use executor='thread'"


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """How much of everything. Decided by the loader, which knows the budget and what the user has set."""

    executor: Literal["process", "thread"]
    workers: int
    readers: int
    slabs: int
    slab_bytes: int
    arena_bytes: int
    deadline_s: float
    most_workers: int = 0
    """How many the controller may go up to; 0 if their number is set."""
    most_readers: int = 0
    stopgaps: bool = False
    """Whether threads may decode here while the processes start: only where they run nothing but our own decoders."""
    batch_size: int = 0
    """Samples for which a slab has room; 0 if that is not known."""
    filled_bytes: int = 0
    """Of each slab, from its start: what every batch fills, so that its pages can be made in one go."""
    cores: tuple[int, ...] = ()
    """To pin worker i to core i, and round again; none to leave that to the system."""

    def knobs(self) -> Knobs:
        """What the controller may turn, and how far."""
        most_ahead = max(1, self.slabs - 1)
        samples = SAMPLES_AHEAD * max(self.workers, self.most_workers)
        wanted = max(LOOK_AHEAD, -(-samples // self.batch_size) if self.batch_size else 0)
        usual = min(wanted, max(2, AHEAD_BYTES // self.slab_bytes))
        ahead = min(max(usual, min(MANY_AHEAD, LITTLE_BYTES // self.slab_bytes)), most_ahead)
        least_readers = 1 if self.most_readers else self.readers
        return Knobs(
            readers=Knob(self.readers, least_readers, max(self.readers, self.most_readers)),
            workers=Knob(self.workers, self.workers, max(self.workers, self.most_workers)),
            look_ahead=Knob(ahead, 1, most_ahead),
            task_s=TASK_S,
        )


class Engine:
    """Owns every thread, process, descriptor and byte it uses; `close` gives all of them back."""

    def __init__(self, supply: BlockSource, work: WorkerProgram, plan: EnginePlan) -> None:
        self.plan = plan
        self._work = work
        self._names = itertools.count()
        self._closed = False
        self._pid = os.getpid()
        pickled, self._main_path = _pickle(work) if plan.executor == "process" else (b"", None)
        self._pickled = SharedMemory.holding(pickled, "work")
        self.arena = Arena(plan.arena_bytes)
        self.slabs = SharedMemory.create(plan.slabs * plan.slab_bytes, "slabs")
        self._shared = WorkerMemory(self.arena.memory, self.slabs, Prefaulter(self.slabs, plan.filled_bytes))
        self.readers = Readers(supply, self.arena.memory, lambda fetched: self.conductor.fetched(fetched))
        residency = BlockCache(self.arena, self.readers, supply, plan.readers)
        dispatch = Dispatch(supply, plan.slab_bytes, plan.deadline_s, self.hire)
        shelf = OutputQueue(plan.slabs)
        self.tuner = Autotuner(residency, self.readers, dispatch, shelf, plan.knobs())
        self.conductor = Scheduler(supply, residency, dispatch, shelf, self.tuner)
        try:
            self.readers.resize(plan.readers)
            if plan.stopgaps and plan.executor == "process":
                for number in range(plan.workers):
                    dispatch.seat(self._thread(f"stopgap {number}"), stopgap=True)
                self.conductor.put_off(lambda: dispatch.add_workers(plan.workers))
            else:
                dispatch.add_workers(plan.workers)
            self.conductor.start()
        except BaseException:
            self.close()
            raise

    def hire(self) -> Worker:
        """One more worker."""
        number = next(self._names)
        name = f"worker {number}"
        if self.plan.executor == "thread":
            return self._thread(name)
        core = {self.plan.cores[number % len(self.plan.cores)]} if self.plan.cores else None
        return ProcessWorker(name, self._pickled, self._shared, self._main_path, core)

    def _thread(self, name: str) -> ThreadWorker:
        return ThreadWorker(name, self._work, self._shared, self.conductor_answered)

    def conductor_answered(self, worker: object, answer: object) -> None:
        """Threads report through here, since they are hired before the conductor runs."""
        self.conductor.answered(worker, answer)  # type: ignore[arg-type]

    @property
    def is_ours(self) -> bool:
        """Whether it runs in this process: a fork has none of its threads, and maybe all of its locks."""
        return self._pid == os.getpid()

    def begin(self, epoch: EpochRequest) -> None:
        """Start an epoch."""
        self._check_ours()
        self.conductor.begin(epoch)

    def wait_for(self, number: int) -> Batch:
        """The next batch."""
        self._check_ours()
        self.conductor.remind()  # before we wait, if we do
        return self.conductor.shelf.take(number)

    def _check_ours(self) -> None:
        if not self.is_ours:
            raise PenstockError(
                "this process was forked from the one that the loader runs in",
                stage="deliver",
                advice="Make a loader in each process, or close() it here before its next pass",
            )

    def has(self, number: int) -> bool:
        """Whether that batch is complete."""
        return self.conductor.shelf.has(number)

    @property
    def failed(self) -> bool:
        """Whether nothing more will come of it than what is complete."""
        return self.conductor.shelf.failed

    def is_settled(self) -> bool:
        """Whether all workers are there: until then, nobody can tell how quick they are."""
        return self.conductor.dispatch.settled

    def stats(self) -> EngineStats:
        """What everybody has done so far."""
        return self.tuner.stats(time.monotonic())

    def close(self) -> None:
        """Stop everything; a second call does nothing, nor does one in a process that was forked from ours."""
        if self._closed or not self.is_ours:
            return
        self._closed = True
        deadline = time.monotonic() + STOP_S
        with ExitStack() as last_first:  # all of it, though an interrupt may fall into any of it
            for memory in (self.slabs, self.arena, self._pickled):
                last_first.callback(memory.close)
            last_first.callback(lambda: self.readers.join(max(0.0, deadline - time.monotonic())))
            last_first.callback(self.readers.stop)  # after the conductor, who might want more of them
            last_first.callback(self.conductor.stop, STOP_S)


def _pickle(work: WorkerProgram) -> tuple[bytes, str | None]:
    """The work as bytes, and the user's script if the work refers to things defined there."""
    try:
        data = pickle.dumps(work)
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

"""Runs independent tasks on worker processes; a worker that dies costs its task, not the run.

One pipe per worker: a queue shared by all would die with the first worker killed while holding its lock.
Around a run, `use_task_runner` puts somebody else in the processes' place: a cluster.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, Generic, Protocol, TypeVar

from penstock.core.cores import usable_cores
from penstock.errors import WorkerCrash

Task = TypeVar("Task")
Result = TypeVar("Result")

_spawn = multiprocessing.get_context("spawn")  # fork is unsafe once there are threads


@dataclass(frozen=True, slots=True)
class TaskOutcome(Generic[Task, Result]):
    """One finished task: its result, or the error that ended it."""

    task: Task
    result: Result | None
    error: Exception | None


class TaskRunnerFunction(Protocol):
    """Whoever runs tasks: as many at a time as asked for, results as they come, errors as results."""

    def __call__(
        self, work: Callable[[Task], Result], tasks: Iterable[Task], workers: int | None
    ) -> Iterator[TaskOutcome[Task, Result]]:
        """Take tasks one at a time, so that a long list of them need never exist."""
        ...


def run_tasks(
    work: Callable[[Task], Result], tasks: Iterable[Task], workers: int | None = None
) -> Iterator[TaskOutcome[Task, Result]]:
    """Results as they come. `work` and the tasks must pickle; an exception in `work` is a result like any other."""
    return _runner.get()(work, tasks, workers)


@contextmanager
def use_task_runner(runner: TaskRunnerFunction) -> Iterator[None]:
    """Within, tasks go to this runner, whoever has them done."""
    before = _runner.set(runner)
    try:
        yield
    finally:
        _runner.reset(before)


def run_in_processes(
    work: Callable[[Task], Result], tasks: Iterable[Task], workers: int | None = None
) -> Iterator[TaskOutcome[Task, Result]]:
    """On worker processes of this machine."""
    waiting = iter(tasks)
    most = workers or usable_cores()
    idle: list[_PoolWorker] = []
    busy: dict[_PoolWorker, Task] = {}
    try:
        while True:
            for task in islice(waiting, most - len(busy)):
                worker = idle.pop() if idle else _PoolWorker(work)
                busy[worker] = task
                worker.send(task)
            if not busy:
                return
            for worker in _workers_with_results(list(busy)):
                done = worker.take(busy[worker])
                del busy[worker]
                if worker.dead:
                    worker.stop()
                else:
                    idle.append(worker)
                yield done
    finally:
        for worker in [*idle, *busy]:
            worker.stop()


_runner: ContextVar[TaskRunnerFunction] = ContextVar("_runner", default=run_in_processes)


def run_and_pickle(work: Callable[[Any], Any], task: Any) -> bytes:
    """Do one task; the outcome, pickled: what is sent from the process that worked to the one that asked."""
    try:
        result, error = work(task), None
    except Exception as reason:
        result, error = None, reason
    return _pickle_result(result, error)


def unpickle_outcome(task: Task, answered: bytes) -> TaskOutcome[Task, Any]:
    """What an answer says."""
    try:
        result, error = ForkingPickler.loads(answered)
    except Exception as reason:  # an error whose constructor wants more than its message
        return TaskOutcome(task, None, WorkerCrash(f"the answer cannot be unpickled: {reason}", stage="work"))
    return TaskOutcome(task, result, error)


class _PoolWorker:
    """A process and our end of its pipe."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self.dead = False
        self.pipe, theirs = _spawn.Pipe()
        self.process: SpawnProcess = _spawn.Process(target=_worker_main, args=(work, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def send(self, task: Any) -> None:
        """Hand over a task; if the worker is gone already, `take` will say so."""
        with suppress(ConnectionError):
            self.pipe.send(task)

    def take(self, task: Any) -> TaskOutcome[Any, Any]:
        """The answer, which may be that the worker is dead."""
        try:
            answered = self.pipe.recv_bytes()
        except (EOFError, OSError):
            self.dead = True
            self.process.join()
            crash = WorkerCrash(f"worker process died: {_describe_exit(self.process.exitcode)}", stage="work")
            return TaskOutcome(task, None, crash)
        return unpickle_outcome(task, answered)

    def stop(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join()
        self.process.close()


def _workers_with_results(workers: list[_PoolWorker]) -> list[_PoolWorker]:
    ready = set(wait([worker.pipe for worker in workers]))
    return [worker for worker in workers if worker.pipe in ready]


def _worker_main(work: Callable[[Any], Any], pipe: Connection) -> None:
    """The worker's life: one task after another until the pipe closes."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business; it closes the pipe
    while True:
        try:
            task = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send_bytes(run_and_pickle(work, task))


def _pickle_result(result: Any, error: Exception | None) -> bytes:
    try:
        return bytes(ForkingPickler.dumps((result, error)))
    except Exception as reason:
        crash = WorkerCrash(f"the answer ({error or type(result)!r}) cannot be pickled: {reason}", stage="work")
        return bytes(ForkingPickler.dumps((None, crash)))


def _exit_with_parent() -> None:
    """A parent killed in the middle is followed at once: whoever goes on with its work must find nobody at it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _describe_exit(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        with suppress(ValueError):  # real-time signals have numbers only
            return f"killed by {signal.Signals(-exitcode).name}"
        return f"killed by signal {-exitcode}"
    return f"exit code {exitcode}"

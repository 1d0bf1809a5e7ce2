"""Run independent tasks on worker processes. A worker that dies loses its task, not the whole run.

Each worker has a pipe of its own: a queue shared by all would be unusable once a worker was killed while it held the
queue's lock. Within `use_task_runner`, `run_tasks` uses another runner instead of processes, such as a Ray cluster.
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

_spawn = multiprocessing.get_context("spawn")  # forking is unsafe in a process with threads


@dataclass(frozen=True, slots=True)
class TaskOutcome(Generic[Task, Result]):
    """One finished task: its result, or the error that ended it."""

    task: Task
    result: Result | None
    error: Exception | None


class TaskRunnerFunction(Protocol):
    """A function that runs at most `workers` tasks at a time and yields outcomes, errors included, as they come."""

    def __call__(
        self, work: Callable[[Task], Result], tasks: Iterable[Task], workers: int | None
    ) -> Iterator[TaskOutcome[Task, Result]]:
        """Take tasks from the iterable one at a time, so that it may be long."""
        ...


def run_tasks(
    work: Callable[[Task], Result], tasks: Iterable[Task], workers: int | None = None
) -> Iterator[TaskOutcome[Task, Result]]:
    """Run `work` on every task; yield outcomes as they come. `work` and the tasks must be picklable."""
    return _runner.get()(work, tasks, workers)


@contextmanager
def use_task_runner(runner: TaskRunnerFunction) -> Iterator[None]:
    """Let `run_tasks` use this runner within the context."""
    before = _runner.set(runner)
    try:
        yield
    finally:
        _runner.reset(before)


def run_in_processes(
    work: Callable[[Task], Result], tasks: Iterable[Task], workers: int | None = None
) -> Iterator[TaskOutcome[Task, Result]]:
    """Run tasks on worker processes of this machine."""
    waiting = iter(tasks)
    max_workers = workers or usable_cores()
    idle: list[_PoolWorker] = []
    busy: dict[_PoolWorker, Task] = {}
    try:
        while True:
            for task in islice(waiting, max_workers - len(busy)):
                worker = idle.pop() if idle else _PoolWorker(work)
                busy[worker] = task
                worker.send(task)
            if not busy:
                return
            for worker in _workers_with_results(list(busy)):
                outcome = worker.receive(busy[worker])
                del busy[worker]
                if worker.dead:
                    worker.stop()
                else:
                    idle.append(worker)
                yield outcome
    finally:
        for worker in [*idle, *busy]:
            worker.stop()


_runner: ContextVar[TaskRunnerFunction] = ContextVar("_runner", default=run_in_processes)


def run_and_pickle(work: Callable[[Any], Any], task: Any) -> bytes:
    """Run one task in the process that executes it; return the pickled result or error for the process that asked."""
    try:
        result, error = work(task), None
    except Exception as reason:
        result, error = None, reason
    return _pickle_result(result, error)


def unpickle_outcome(task: Task, pickled: bytes) -> TaskOutcome[Task, Any]:
    """Return the outcome of a task from what `run_and_pickle` returned."""
    try:
        result, error = ForkingPickler.loads(pickled)
    except Exception as reason:  # for example an error whose constructor needs more than its message
        return TaskOutcome(task, None, WorkerCrash(f"the answer cannot be unpickled: {reason}", stage="work"))
    return TaskOutcome(task, result, error)


class _PoolWorker:
    """A worker process and the parent's end of its pipe."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self.dead = False
        self.pipe, worker_end = _spawn.Pipe()
        self.process: SpawnProcess = _spawn.Process(target=_worker_main, args=(work, worker_end), daemon=True)
        self.process.start()
        worker_end.close()

    def send(self, task: Any) -> None:
        """Send a task; if the worker has died already, `receive` reports it."""
        with suppress(ConnectionError):
            self.pipe.send(task)

    def receive(self, task: Any) -> TaskOutcome[Any, Any]:
        """Return the outcome of the task that was sent; a WorkerCrash if the worker has died."""
        try:
            pickled = self.pipe.recv_bytes()
        except (EOFError, OSError):
            self.dead = True
            self.process.join()
            crash = WorkerCrash(f"worker process died: {_describe_exit(self.process.exitcode)}", stage="work")
            return TaskOutcome(task, None, crash)
        return unpickle_outcome(task, pickled)

    def stop(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join()
        self.process.close()


def _workers_with_results(workers: list[_PoolWorker]) -> list[_PoolWorker]:
    ready = set(wait([worker.pipe for worker in workers]))
    return [worker for worker in workers if worker.pipe in ready]


def _worker_main(work: Callable[[Any], Any], pipe: Connection) -> None:
    """Run one task after another until the pipe is closed."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and closes the pipe
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
    """Exit as soon as the parent dies, so that no worker interferes with a later run that continues its work."""
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

"""The life of a worker process: attach the shared memory, then one task after another until the pipe closes.

Started by path, not by multiprocessing's spawn: that would import the user's main script, and with it torch. Without
it a worker is up in a fraction of a second, is small, and needs no `if __name__ == "__main__"` in anyone's script.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import runpy
import signal
import struct
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.core.contracts import BAD_SAMPLE, Task, TaskResult, TaskRunner, WorkerProgram
from penstock.engine.ipc import Pipe
from penstock.engine.shared_memory import SharedMemory
from penstock.errors import SampleError

_TASK = struct.Struct("<4q")  # number, slab start, epoch, rows
_ANSWER = struct.Struct("<qdd")  # number, busy seconds, starved seconds
importing_main = False
"""Whether this is a worker that is about to find what the user's script defines."""
SETTLE_BYTES = 4 << 20
"""Settled in one go: small enough that threads end together, large enough for the two calls not to count."""


@dataclass(frozen=True, slots=True)
class WorkerInit:
    """The first message: everything a worker must know. Comes from our own parent, over our own pipe."""

    work_fd: int
    """The pickled work: a dataset in it may be large, and a pipe holds little until somebody reads."""
    work_size: int
    arena_fd: int
    arena_size: int
    slabs_fd: int
    slabs_size: int
    filled_bytes: int
    """Of each slab: see Settled."""
    main_path: str | None
    """The user's script, to be run as a module, only when something in `work` was defined there."""


def encode_task(task: Task) -> bytes:
    """Numbers only: no pickle on the way to a worker."""
    return _TASK.pack(task.number, task.slab_start, task.epoch, len(task.rows)) + task.rows.tobytes()


def decode_task(data: bytes) -> Task:
    """The other side of `encode_task`."""
    number, slab_start, epoch, count = _TASK.unpack_from(data)
    return Task(number, slab_start, epoch, np.frombuffer(data, np.int64, offset=_TASK.size).reshape(count, -1))


def encode_answer(answer: TaskResult) -> bytes:
    """Numbers, and a pickle behind them only if something did not fit into the slab."""
    head = _ANSWER.pack(answer.number, answer.busy_s, answer.starved_s)
    return head + pickle.dumps(answer.extras) if answer.extras else head


def decode_answer(data: bytes) -> TaskResult:
    """The other side of `encode_answer`; the bytes come from a process we started."""
    number, busy_s, starved_s = _ANSWER.unpack_from(data)
    extras = pickle.loads(data[_ANSWER.size :]) if len(data) > _ANSWER.size else []  # noqa: S301
    return TaskResult(number, extras, busy_s, starved_s)


class Prefaulter:
    """Which slabs have their pages mapped in this process: done once for each, before its first sample."""

    def __init__(self, slabs: SharedMemory, filled_bytes: int) -> None:
        self._slabs = slabs
        self.filled_bytes = filled_bytes
        self._left: dict[int, deque[int]] = {}
        """By where a slab starts: the pieces of it that nobody has begun with."""

    def settle(self, start: int) -> None:
        """Threads that come together share it out."""
        left = self._left.get(start)
        if left is None:
            left = self._left.setdefault(start, deque(range(0, self.filled_bytes, SETTLE_BYTES)))
        while left:
            with suppress(IndexError):  # another thread took the last piece
                at = left.popleft()
                self._slabs.settle(start + at, min(SETTLE_BYTES, self.filled_bytes - at))


def timed_run(runner: TaskRunner, settled: Prefaulter, task: Task, waiting_since: float) -> TaskResult:
    """Run a task and say what its worker did with its time."""
    start = time.perf_counter()
    try:
        settled.settle(task.slab_start)
        extras = runner(task)
    except BaseException as error:  # the runner itself broke, so all its samples did; sys.exit must not end a thread
        extras = all_bad(task, error)
    return TaskResult(task.number, extras, time.perf_counter() - start, start - waiting_since)


def all_bad(task: Task, error: BaseException) -> list[tuple[int, str, Any]]:
    """Every slot of the task, with an error of its own: each is told where it was."""
    return [(slot, BAD_SAMPLE, _ours(error)) for slot in task.rows[:, 0].tolist()]


def _ours(error: BaseException) -> SampleError:
    """A stranger's may not survive the pipe."""
    return SampleError(f"{type(error).__name__}: {error}", stage="decode")


def main(pipe_fd: int) -> None:
    """What the new interpreter runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business; it closes the pipe
    os.set_inheritable(pipe_fd, False)  # a program that the user's code starts must not keep it open after us
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, all_threads=True)  # the parent asks where we are stuck
    pipe = Pipe(pipe_fd)
    with suppress(EOFError, ConnectionError):  # the parent is gone, or done with us
        first, *tasks = pipe.receive()
        greeting: WorkerInit = pickle.loads(first)  # noqa: S301
        runner, settled = _start(greeting)
        pipe.send(b"ready")
        _serve(runner, settled, pipe, tasks)


def _start(greeting: WorkerInit) -> tuple[TaskRunner, Prefaulter]:
    if greeting.main_path is not None:
        _import_main(greeting.main_path)
    pickled = SharedMemory(greeting.work_fd, greeting.work_size)
    work: WorkerProgram = pickle.loads(pickled.view)  # noqa: S301
    pickled.close()
    arena = SharedMemory(greeting.arena_fd, greeting.arena_size)
    slabs = SharedMemory(greeting.slabs_fd, greeting.slabs_size)
    return work.start(arena.view, slabs.view), Prefaulter(slabs, greeting.filled_bytes)


def _import_main(path: str) -> None:
    """Make what the user's script defines findable where pickle looks for it, as multiprocessing does."""
    global importing_main
    module = type(sys)("__mp_main__")
    importing_main = True
    module.__dict__.update(runpy.run_path(path, run_name="__mp_main__"))
    importing_main = False
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module


def _serve(runner: TaskRunner, settled: Prefaulter, pipe: Pipe, messages: list[bytes]) -> None:
    """`messages` are those that have come already."""
    waiting_since = time.perf_counter()
    while True:
        for task in map(decode_task, messages):
            answer = timed_run(runner, settled, task, waiting_since)
            waiting_since = time.perf_counter()
            try:
                message = encode_answer(answer)
            except Exception:  # a value that cannot be pickled costs its sample, not the worker
                message = encode_answer(replace(answer, extras=[_sendable(extra) for extra in answer.extras]))
            pipe.send(message)
        messages = pipe.receive()


def _sendable(extra: tuple[int, str, Any]) -> tuple[int, str, Any]:
    try:
        pickle.dumps(extra)
    except Exception as error:
        return extra[0], BAD_SAMPLE, _ours(error)
    return extra


def limit_library_threads(environment: dict[str, str]) -> dict[str, str]:
    """A worker is one core's worth of work: libraries must not start threads of their own."""
    limits = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return {**environment, **dict.fromkeys(limits, "1")}

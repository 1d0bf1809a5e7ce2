"""The program of a worker process: map the shared memory, then run one task after another until the pipe is closed.

The process is started by path and not by multiprocessing's "spawn", which would import the user's main script and torch
with it. So a worker starts in a fraction of a second, is small, and scripts need no `if __name__ == "__main__"`.
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

_TASK = struct.Struct("<5q")  # number, slab start, epoch, padding, number of rows
_RESULT = struct.Struct("<qdd")  # number, busy seconds, starved seconds
importing_main = False
"""Whether this process is a worker that is importing the user's script, for what it defines."""
PREFAULT_BYTES = 4 << 20
"""Bytes prefaulted in one call: few enough that threads end at about the same time, enough that the cost of a call does
not count."""


@dataclass(frozen=True, slots=True)
class WorkerInit:
    """The first message to a worker process: all that it must know. It comes from the parent, over the worker's
    pipe."""

    program_fd: int
    """Shared memory of the pickled program: it may hold a large dataset, and a pipe holds little until it is read."""
    program_size: int
    arena_fd: int
    arena_size: int
    slabs_fd: int
    slabs_size: int
    filled_bytes: int
    """The first bytes of each slab, which every batch fills; see Prefaulter."""
    main_path: str | None
    """The user's script, to be run as a module; None if nothing in the program was defined there."""


def encode_task(task: Task) -> bytes:
    """Return a task as numbers only: nothing is pickled for a task."""
    return _TASK.pack(task.number, task.slab_start, task.epoch, task.padding, len(task.rows)) + task.rows.tobytes()


def decode_task(data: bytes) -> Task:
    """Return the task that `encode_task` encoded."""
    number, slab_start, epoch, padding, count = _TASK.unpack_from(data)
    rows = np.frombuffer(data, np.int64, offset=_TASK.size).reshape(count, -1)
    return Task(number, slab_start, epoch, rows, padding)


def encode_result(result: TaskResult) -> bytes:
    """Return a result as numbers, followed by a pickle only if some values did not fit into the slab."""
    head = _RESULT.pack(result.number, result.busy_s, result.starved_s)
    return head + pickle.dumps(result.extras) if result.extras else head


def decode_result(data: bytes) -> TaskResult:
    """Return the result that `encode_result` encoded, in a worker process of this program."""
    number, busy_s, starved_s = _RESULT.unpack_from(data)
    extras = pickle.loads(data[_RESULT.size :]) if len(data) > _RESULT.size else []  # noqa: S301
    return TaskResult(number, extras, busy_s, starved_s)


class Prefaulter:
    """Maps the pages of each slab in this process, once, before the first sample is written there."""

    def __init__(self, slabs: SharedMemory, filled_bytes: int) -> None:
        self._slabs = slabs
        self.filled_bytes = filled_bytes
        self._pending: dict[int, deque[int]] = {}
        """Offsets of the pieces of a slab that no thread has begun with, by the start of the slab."""

    def prefault(self, slab_start: int) -> None:
        """Map the pages of a slab. Threads that call this at the same time share the pieces."""
        pending = self._pending.get(slab_start)
        if pending is None:
            pieces = deque(range(0, self.filled_bytes, PREFAULT_BYTES))
            pending = self._pending.setdefault(slab_start, pieces)
        while pending:
            with suppress(IndexError):  # another thread took the last piece
                offset = pending.popleft()
                self._slabs.prefault(slab_start + offset, min(PREFAULT_BYTES, self.filled_bytes - offset))


def run_task(runner: TaskRunner, prefaulter: Prefaulter, task: Task, waiting_since: float) -> TaskResult:
    """Run a task and measure the time of the worker."""
    start = time.perf_counter()
    try:
        prefaulter.prefault(task.slab_start)
        extras = runner(task)
    except BaseException as error:  # the runner itself failed, so all samples did; sys.exit must not end a thread
        extras = all_bad(task, error)
    return TaskResult(task.number, extras, time.perf_counter() - start, start - waiting_since)


def all_bad(task: Task, error: BaseException) -> list[tuple[int, str, Any]]:
    """Return an error for every slot of the task: a new one for each, since each gets the location of its sample."""
    return [(slot, BAD_SAMPLE, _as_sample_error(error)) for slot in task.rows[:, 0].tolist()]


def _as_sample_error(error: BaseException) -> SampleError:
    """Return an error that can be pickled; those of other libraries may not."""
    return SampleError(f"{type(error).__name__}: {error}", stage="decode")


def main(pipe_fd: int) -> None:
    """Run a worker process until its pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the parent closes the pipe
    os.set_inheritable(pipe_fd, False)  # a program that the user's code starts must not keep the pipe open
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, all_threads=True)  # with it, the parent asks for the stack
    pipe = Pipe(pipe_fd)
    with suppress(EOFError, ConnectionError):  # the parent has ended, or has closed the pipe
        first, *tasks = pipe.receive()
        init: WorkerInit = pickle.loads(first)  # noqa: S301
        runner, prefaulter = _start(init)
        pipe.send(b"ready")
        _serve(runner, prefaulter, pipe, tasks)


def _start(init: WorkerInit) -> tuple[TaskRunner, Prefaulter]:
    if init.main_path is not None:
        _import_main(init.main_path)
    pickled = SharedMemory(init.program_fd, init.program_size)
    program: WorkerProgram = pickle.loads(pickled.view)  # noqa: S301
    pickled.close()
    arena = SharedMemory(init.arena_fd, init.arena_size)
    slabs = SharedMemory(init.slabs_fd, init.slabs_size)
    return program.start(arena.view, slabs.view), Prefaulter(slabs, init.filled_bytes)


def _import_main(path: str) -> None:
    """Run the user's script as the module in which pickle finds what it defines, as multiprocessing does."""
    global importing_main
    module = type(sys)("__mp_main__")
    importing_main = True
    module.__dict__.update(runpy.run_path(path, run_name="__mp_main__"))
    importing_main = False
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module


def _serve(runner: TaskRunner, prefaulter: Prefaulter, pipe: Pipe, messages: list[bytes]) -> None:
    """Run tasks; `messages` are those that have been received already."""
    waiting_since = time.perf_counter()
    while True:
        for task in map(decode_task, messages):
            result = run_task(runner, prefaulter, task, waiting_since)
            waiting_since = time.perf_counter()
            try:
                message = encode_result(result)
            except Exception:  # a value that cannot be pickled makes its sample bad, and does not end the worker
                message = encode_result(replace(result, extras=[_picklable(extra) for extra in result.extras]))
            pipe.send(message)
        messages = pipe.receive()


def _picklable(extra: tuple[int, str, Any]) -> tuple[int, str, Any]:
    try:
        pickle.dumps(extra)
    except Exception as error:
        return extra[0], BAD_SAMPLE, _as_sample_error(error)
    return extra


def limit_library_threads(environment: dict[str, str]) -> dict[str, str]:
    """Return the environment with limits: a worker uses one core, so libraries must not start threads of their own."""
    limits = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return {**environment, **dict.fromkeys(limits, "1")}

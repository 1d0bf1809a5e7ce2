"""The workers as the conductor sees them: processes and threads behind the same four methods."""

from __future__ import annotations

import faulthandler
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from penstock.core.contracts import Task, TaskResult, WorkerProgram
from penstock.engine.ipc import Pipe
from penstock.engine.shared_memory import SharedMemory
from penstock.engine.worker_main import (
    Prefaulter,
    WorkerInit,
    decode_answer,
    encode_task,
    limit_library_threads,
    timed_run,
)
from penstock.errors import WorkerCrash

KILLED_S = 2.0
"""For a process that was killed to be gone, at least."""


class Worker(Protocol):
    """Somebody who runs tasks."""

    name: str
    ready: bool
    """Whether it has set itself up and can be given tasks."""
    replaceable: bool
    """Whether `stop` ends it even in the middle of a task, so that another one can do the task again."""

    def send(self, task: Task) -> None:
        """Hand over a task; it waits there if the worker is busy."""
        ...

    def show_stack(self) -> None:
        """Have it print where it is, to stderr."""
        ...

    def stop(self) -> None:
        """End it, now, whatever it is doing, if that can be done."""
        ...

    def join(self, timeout_s: float) -> bool:
        """After `stop`: whether it has ended in about that time."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """The memory all workers see."""

    arena: SharedMemory
    slabs: SharedMemory
    settled: Prefaulter


class ProcessWorker:
    """A worker in a process of its own, with a pipe of its own."""

    replaceable = True

    def __init__(
        self, name: str, work: SharedMemory, shared: WorkerMemory, main_path: str | None, cores: set[int] | None
    ) -> None:
        self.name = name
        self.ready = False
        ours, theirs = socket.socketpair()
        with theirs:
            fds = (theirs.fileno(), work.fd, shared.arena.fd, shared.slabs.fd)
            self.process = subprocess.Popen(
                [sys.executable, "-c", _boot(theirs.fileno())],
                pass_fds=fds,
                env=limit_library_threads(dict(os.environ)),
                stdin=subprocess.DEVNULL,
            )
        self.pipe = Pipe(ours.detach())
        try:
            if cores and hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(self.process.pid, cores)
        except OSError:
            self.stop()
            self.join(KILLED_S)
            raise
        arena, slabs, filled_bytes = shared.arena, shared.slabs, shared.settled.filled_bytes
        greeting = WorkerInit(work.fd, work.size, arena.fd, arena.size, slabs.fd, slabs.size, filled_bytes, main_path)
        self._write(pickle.dumps(greeting))

    def fileno(self) -> int:
        """Readable when there is an answer, or when the process is gone."""
        return self.pipe.fileno()

    def send(self, task: Task) -> None:
        """Hand over a task; a worker that is gone will be noticed by `receive`."""
        self._write(encode_task(task))

    def receive(self) -> list[TaskResult]:
        """Answers, in the order of the tasks; none with the sign of readiness, or while one is still being sent.

        WorkerCrash if the process is gone.
        """
        try:
            messages = self.pipe.take()
        except (EOFError, OSError):
            raise self._crash() from None
        if messages and not self.ready:
            self.ready = True
            messages = messages[1:]
        return list(map(decode_answer, messages))

    def check(self) -> None:
        """WorkerCrash if the process is gone, and nobody can tell by its pipe: a child that it forked has that open."""
        if self.process.poll() is not None:
            raise self._crash()

    def show_stack(self) -> None:
        """Have it print where it is, to stderr."""
        if hasattr(signal, "SIGUSR1"):
            self.process.send_signal(signal.SIGUSR1)

    def stop(self) -> None:
        """It holds nothing that needs saving."""
        self.pipe.close()
        self.process.kill()

    def join(self, timeout_s: float) -> bool:
        """Whether it has ended: at once, unless the kernel holds it in a read that cannot be broken off."""
        try:
            self.process.wait(max(timeout_s, KILLED_S))
        except subprocess.TimeoutExpired:
            return False
        return True

    def _write(self, message: bytes) -> None:
        try:
            self.pipe.send(message)
        except OSError:
            pass  # it is gone: `receive` will say so

    def _crash(self) -> WorkerCrash:
        return WorkerCrash(f"{self.name} died: {self._death()}", stage="decode")

    def _death(self) -> str:
        try:
            code = self.process.wait(timeout=KILLED_S)
        except subprocess.TimeoutExpired:
            return "it closed its pipe"
        return f"killed by {_signal_name(-code)}" if code < 0 else f"exit code {code}"


class ThreadWorker:
    """A worker in a thread: for few cores, notebooks, free-threaded Python, and while processes start.

    One that is stuck cannot be replaced: should it wake up, it would write into a slab that has become another batch.
    """

    replaceable = False

    def __init__(
        self, name: str, work: WorkerProgram, shared: WorkerMemory, answered: Callable[[ThreadWorker, TaskResult], None]
    ) -> None:
        self.name = name
        self.ready = True
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._answered = answered
        self._runner = work.start(shared.arena.view, shared.slabs.view)
        self._settled = shared.settled
        self._thread = threading.Thread(target=self._serve, name=f"penstock-{name}", daemon=True)
        self._thread.start()

    def send(self, task: Task) -> None:
        """Put it into the thread's own queue."""
        self._tasks.put(task)

    def show_stack(self) -> None:
        """All threads' stacks: there is no way to ask for one."""
        faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)

    def stop(self) -> None:
        """It ends after the task it is at: a thread cannot be killed."""
        self._tasks.put(None)

    def join(self, timeout_s: float) -> bool:
        """Whether it has ended in that time."""
        if self._thread is not threading.current_thread():  # a finalizer may run anywhere
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        waiting_since = time.perf_counter()
        while True:
            task = self._tasks.get()
            if task is None:
                return
            answer = timed_run(self._runner, self._settled, task, waiting_since)
            waiting_since = time.perf_counter()
            self._answered(self, answer)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time one has none
        return f"signal {number}"


def _boot(pipe_fd: int) -> str:
    """The child's program: our own search path, then the worker. Nothing of the user's script."""
    return f"import sys; sys.path[:] = {sys.path!r}; from penstock.engine.worker_main import main; main({pipe_fd})"

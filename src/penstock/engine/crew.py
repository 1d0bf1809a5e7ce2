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
from multiprocessing.connection import Connection
from typing import Protocol

from penstock.core.work import Answer, Task, Work
from penstock.engine.memory import SharedBytes
from penstock.engine.worker import Greeting, Settled, decode_answer, encode_task, limit_library_threads, timed_run
from penstock.errors import WorkerCrash


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
        """After `stop`: whether it has ended in that time."""
        ...


@dataclass(frozen=True, slots=True)
class Shared:
    """The memory all workers see."""

    arena: SharedBytes
    slabs: SharedBytes
    settled: Settled


class ProcessWorker:
    """A worker in a process of its own, with a pipe of its own."""

    replaceable = True

    def __init__(self, name: str, work: bytes, shared: Shared, main_path: str | None, cores: set[int] | None) -> None:
        self.name = name
        self.ready = False
        ours, theirs = socket.socketpair()
        with theirs:
            fds = (theirs.fileno(), shared.arena.fd, shared.slabs.fd)
            self.process = subprocess.Popen(
                [sys.executable, "-c", _boot(theirs.fileno())],
                pass_fds=fds,
                env=limit_library_threads(dict(os.environ)),
                stdin=subprocess.DEVNULL,
            )
        self.pipe = Connection(ours.detach())
        if cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(self.process.pid, cores)
        arena, slabs = shared.arena, shared.slabs
        greeting = Greeting(work, arena.fd, arena.size, slabs.fd, slabs.size, shared.settled.filled_bytes, main_path)
        self._write(pickle.dumps(greeting))

    def fileno(self) -> int:
        """Readable when there is an answer, or when the process is gone."""
        return self.pipe.fileno()

    def send(self, task: Task) -> None:
        """Hand over a task; a worker that is gone will be noticed by `receive`."""
        self._write(encode_task(task))

    def receive(self) -> Answer | None:
        """An answer; None for the sign of readiness; WorkerCrash if the process is gone."""
        try:
            data = self.pipe.recv_bytes()
        except (EOFError, OSError):
            raise WorkerCrash(f"{self.name} died: {self._death()}", stage="decode") from None
        if not self.ready:
            self.ready = True
            return None
        return decode_answer(data)

    def show_stack(self) -> None:
        """Have it print where it is, to stderr."""
        if hasattr(signal, "SIGUSR1"):
            self.process.send_signal(signal.SIGUSR1)

    def stop(self) -> None:
        """It holds nothing that needs saving."""
        self.pipe.close()
        self.process.kill()
        self.process.wait()

    def join(self, timeout_s: float) -> bool:
        """`stop` has seen it end."""
        return True

    def _write(self, message: bytes) -> None:
        try:
            self.pipe.send_bytes(message)
        except OSError:
            pass  # it is gone: `receive` will say so

    def _death(self) -> str:
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "it closed its pipe"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


class ThreadWorker:
    """A worker in a thread: for few cores, notebooks, free-threaded Python, and while processes start.

    One that is stuck cannot be replaced: should it wake up, it would write into a slab that has become another batch.
    """

    replaceable = False

    def __init__(self, name: str, work: Work, shared: Shared, answered: Callable[[ThreadWorker, Answer], None]) -> None:
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


def _boot(pipe_fd: int) -> str:
    """The child's program: our own search path, then the worker. Nothing of the user's script."""
    return f"import sys; sys.path[:] = {sys.path!r}; from penstock.engine.worker import main; main({pipe_fd})"

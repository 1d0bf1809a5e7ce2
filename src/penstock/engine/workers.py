"""The workers as the scheduler sees them: processes and threads behind the same methods."""

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
    decode_result,
    encode_task,
    limit_library_threads,
    run_task,
)
from penstock.errors import WorkerCrash

KILL_TIMEOUT_S = 2.0
"""The least time that is waited for a killed process to end."""


class Worker(Protocol):
    """A process or a thread that runs tasks, one after another."""

    name: str
    ready: bool
    """Whether it has started and can be given tasks."""
    replaceable: bool
    """Whether `stop` ends it even in the middle of a task, so that another worker can repeat the task."""

    def send(self, task: Task) -> None:
        """Give it a task, which waits there if the worker is busy."""
        ...

    def print_stack(self) -> None:
        """Let it print its stack to stderr."""
        ...

    def stop(self) -> None:
        """End it, at once if it is replaceable."""
        ...

    def join(self, timeout_s: float) -> bool:
        """Wait, after `stop`, until it has ended or until about the timeout; return whether it has ended."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """The memory that all workers share."""

    arena: SharedMemory
    slabs: SharedMemory
    prefaulter: Prefaulter
    """Used by the threads of this process; a worker process makes its own."""


class ProcessWorker:
    """A worker in a process of its own, connected by a pipe."""

    replaceable = True

    def __init__(
        self, name: str, program: SharedMemory, memory: WorkerMemory, main_path: str | None, cores: set[int] | None
    ) -> None:
        self.name = name
        self.ready = False
        own_end, worker_end = socket.socketpair()
        arena, slabs = memory.arena, memory.slabs
        with worker_end:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _start_code(worker_end.fileno())],
                pass_fds=(worker_end.fileno(), program.fd, arena.fd, slabs.fd),
                env=limit_library_threads(dict(os.environ)),
                stdin=subprocess.DEVNULL,
            )
        self.pipe = Pipe(own_end.detach())
        try:
            if cores and hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(self.process.pid, cores)
        except OSError:
            self.stop()
            self.join(KILL_TIMEOUT_S)
            raise
        filled_bytes = memory.prefaulter.filled_bytes
        init = WorkerInit(program.fd, program.size, arena.fd, arena.size, slabs.fd, slabs.size, filled_bytes, main_path)
        self._write(pickle.dumps(init))

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is a result, or when the process has ended."""
        return self.pipe.fileno()

    def send(self, task: Task) -> None:
        """Give it a task; if the process has ended, `receive` reports that."""
        self._write(encode_task(task))

    def receive(self) -> list[TaskResult]:
        """Return results in the order of the tasks; none if the message was the ready signal or is incomplete.

        Raises WorkerCrash if the process has ended.
        """
        try:
            messages = self.pipe.receive_available()
        except (EOFError, OSError):
            raise self._crash() from None
        if messages and not self.ready:
            self.ready = True
            messages = messages[1:]
        return list(map(decode_result, messages))

    def check(self) -> None:
        """Raise WorkerCrash if the process has ended without closing its pipe: a child that it forked holds it open."""
        if self.process.poll() is not None:
            raise self._crash()

    def print_stack(self) -> None:
        """Let it print its stack to stderr."""
        if hasattr(signal, "SIGUSR1"):
            self.process.send_signal(signal.SIGUSR1)

    def stop(self) -> None:
        """Kill the process; it holds nothing that needs saving."""
        self.pipe.close()
        self.process.kill()

    def join(self, timeout_s: float) -> bool:
        """Return whether it has ended: at once, unless the kernel holds it in a read that cannot be interrupted."""
        try:
            self.process.wait(max(timeout_s, KILL_TIMEOUT_S))
        except subprocess.TimeoutExpired:
            return False
        return True

    def _write(self, message: bytes) -> None:
        try:
            self.pipe.send(message)
        except OSError:
            pass  # the process has ended: `receive` reports it

    def _crash(self) -> WorkerCrash:
        return WorkerCrash(f"{self.name} died: {self._cause_of_death()}", stage="decode")

    def _cause_of_death(self) -> str:
        try:
            code = self.process.wait(timeout=KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return "it closed its pipe"
        return f"killed by {_signal_name(-code)}" if code < 0 else f"exit code {code}"


class ThreadWorker:
    """A worker in a thread: for few cores, notebooks, free-threaded Python, and while processes start.

    A stuck thread cannot be replaced: if it continued later, it would write into a slab that holds another batch.
    """

    replaceable = False

    def __init__(
        self,
        name: str,
        program: WorkerProgram,
        memory: WorkerMemory,
        on_result: Callable[[ThreadWorker, TaskResult], None],
    ) -> None:
        self.name = name
        self.ready = True
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._on_result = on_result
        self._runner = program.start(memory.arena.view, memory.slabs.view)
        self._prefaulter = memory.prefaulter
        self._thread = threading.Thread(target=self._serve, name=f"penstock-{name.replace(' ', '-')}", daemon=True)
        self._thread.start()

    def send(self, task: Task) -> None:
        """Put the task into the thread's own queue."""
        self._tasks.put(task)

    def print_stack(self) -> None:
        """Print the stacks of all threads: the stack of one cannot be requested."""
        faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)

    def stop(self) -> None:
        """Let it end after its current task: a thread cannot be killed."""
        self._tasks.put(None)

    def join(self, timeout_s: float) -> bool:
        """Return whether it has ended within that time."""
        if self._thread is not threading.current_thread():  # a finalizer may run in any thread
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        waiting_since = time.perf_counter()
        while True:
            task = self._tasks.get()
            if task is None:
                return
            result = run_task(self._runner, self._prefaulter, task, waiting_since)
            waiting_since = time.perf_counter()
            self._on_result(self, result)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"


def _start_code(pipe_fd: int) -> str:
    """Return the program of the child: the search path of this process, then the worker, and nothing of the script."""
    return f"import sys; sys.path[:] = {sys.path!r}; from penstock.engine.worker_main import main; main({pipe_fd})"

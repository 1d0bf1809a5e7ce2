"""The worker processes of `penstock.DataLoader`, which multiprocessing starts."""

from __future__ import annotations

import gc
import multiprocessing
import os
import platform
import signal
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from penstock.engine.work_queue import WorkQueue

GRACE_S = 1.0
"""Seconds that a worker has to end by itself, so that what it has printed or written to files is not lost."""
MAX_FAILED_STARTS = 3
"""Workers in a row that may die before they take a sample; something is wrong with all of them then."""


def default_context() -> BaseContext:
    """Return the context that the user has chosen, else the one that forks, where the system can.

    A forked worker shares the memory of the dataset and needs no copy of it: open files, lambdas and classes of a
    notebook work. Python 3.14 made another method the default of Linux.
    """
    chosen: Any = multiprocessing.get_start_method(allow_none=True)
    if chosen is None and platform.system() == "Linux":
        chosen = "fork"
    context: BaseContext = multiprocessing.get_context(chosen)
    return context


class WorkerGroup:
    """Some worker processes, with their numbers from 0 on.

    Processes are started in the thread that calls `start` and `replace`: for forked ones this must be the training
    loop's, which holds no lock of a library at that time.
    """

    def __init__(self, queue: WorkQueue, context: BaseContext, serve: Callable[..., None], program: Any) -> None:
        """Each worker calls `serve(queue, number, program)`."""
        self._queue = queue
        self._context: Any = context
        self._arguments = serve, program
        self.processes: list[BaseProcess] = []
        self._pid = os.getpid()

    def start(self) -> None:
        """Start all workers."""
        for number in range(self._queue.workers):
            self.processes.append(self._make(number))

    def _make(self, number: int) -> BaseProcess:
        serve, program = self._arguments
        process: BaseProcess = self._context.Process(
            target=_run, args=(self._queue, number, serve, program), daemon=True, name=f"penstock-worker-{number}"
        )
        with warnings.catch_warnings():
            # Python 3.12 warns of a fork beside threads. Torch has some, and its own DataLoader forks beside them.
            warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
            process.start()
        return process

    def dead(self) -> list[int]:
        """Return the workers whose process has ended."""
        return [number for number, process in enumerate(self.processes) if not process.is_alive()]

    def sentinels(self) -> list[int]:
        """Return descriptors that are readable when a process has ended."""
        return [process.sentinel for process in self.processes]

    def cause_of_death(self, number: int) -> str:
        """Return how a worker has ended, in words."""
        process = self.processes[number]
        code = process.exitcode
        what = f"DataLoader worker (pid(s) {process.pid}) "
        if code is not None and code < 0:
            return what + f"is killed by signal: {signal.strsignal(-code) or -code}"
        return what + f"exited unexpectedly with exit code {code}"

    def replace(self, number: int) -> None:
        """Start a process in the place of one that has ended."""
        self.processes[number].close()
        self.processes[number] = self._make(number)

    def stop(self, grace_s: float = GRACE_S) -> None:
        """End all workers: each finishes the sample it is at, and is killed if that takes too long."""
        if self._pid != os.getpid():
            return
        self._queue.stop()
        deadline = time.monotonic() + grace_s
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        for process in self.processes:
            if process.is_alive():
                process.kill()
        for process in self.processes:
            process.join()
            process.close()
        self.processes = []


def _run(queue: WorkQueue, number: int, serve: Callable[..., None], program: Any) -> None:
    """Run a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the training process ends its workers
    with suppress(ValueError):
        signal.set_wakeup_fd(-1)  # of an event loop in the training process
    gc.freeze()  # a collection would otherwise write to, and so copy, the memory shared with the training process
    with suppress(BrokenPipeError, ConnectionError):  # the training process has ended
        serve(queue, number, program)

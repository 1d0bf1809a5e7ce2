"""The single thread of this process that talks to object stores.

Other threads hand it coroutines and wait. Requests run concurrently in its asyncio loop, where they can be cancelled
at any moment, which a blocking call cannot.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import socket
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.core.thread_frames import frames_by_thread
from penstock.errors import StorageError

Result = TypeVar("Result")

STOP_TIMEOUT_S = 2.0
"""Seconds that the loop, and then obstore's own threads, get to stop when the interpreter ends."""


class _IoThread:
    """An asyncio loop in a daemon thread, stopped when the interpreter ends."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="penstock-remote", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            _wakeups.wait_for(future)
            return future.result()
        except BaseException:  # for example Ctrl-C in the calling thread
            future.cancel()
            raise

    def _stop(self) -> None:
        if self.pid != os.getpid():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_TIMEOUT_S)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while _foreign_threads_in_python() and time.monotonic() < deadline:
            time.sleep(0.001)


class _Wakeup:
    """A pair of sockets by which the I/O thread wakes one waiting thread."""

    def __init__(self) -> None:
        self._ends: tuple[socket.socket, ...] = ()
        self._ends = socket.socketpair()

    def notify(self, _: object) -> None:
        with suppress(OSError):  # the waiting thread has gone
            self._ends[1].send(b"x")

    def wait(self) -> None:
        self._ends[0].recv(1)

    def __del__(self) -> None:
        for end in self._ends:
            end.close()


class _Wakeups(threading.local):
    """The wake-up of each thread that waits for requests.

    It is not a lock, so that a stack sampler that reports what a worker waits for sees a wait for the network.
    """

    idle: _Wakeup | None = None

    def wait_for(self, future: Future[Any]) -> None:
        """Return when the future is done, or at once if no descriptors are left to wait with."""
        try:
            # A wake-up is put back only after its wait: after an interrupt it may hold a stale notification.
            wakeup, self.idle = self.idle or _Wakeup(), None
        except OSError:
            return
        future.add_done_callback(wakeup.notify)
        wakeup.wait()
        self.idle = wakeup


_wakeups = _Wakeups()


def _foreign_threads_in_python() -> bool:
    """Return whether a thread of obstore still delivers a result: ending the interpreter meanwhile would abort."""
    python_threads = {thread.ident for thread in threading.enumerate()}
    return any(ident not in python_threads for ident in frames_by_thread())


_io_thread: _IoThread | None = None
_lock = threading.Lock()


def run_on_io_thread(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in the I/O thread, and return its result."""
    try:
        thread = _get_io_thread()
    except BaseException:
        coroutine.close()
        raise
    return thread.run(coroutine)


def _get_io_thread() -> _IoThread:
    global _io_thread
    with _lock:
        if _io_thread is None:
            _io_thread = _IoThread()
        if _io_thread.pid != os.getpid():
            raise StorageError(
                "an object store was read before this process was forked, and cannot be read after it",
                stage="open",
                advice="Start workers by spawning: DataLoader(..., multiprocessing_context='spawn')",
            )
        return _io_thread


@dataclass(slots=True)
class StoreCounts:
    """Sums over all requests of this process since its start. Only the I/O thread writes them."""

    requests: int = 0
    bytes_read: int = 0
    answers: int = 0
    """Answers to requests for a range."""
    answer_s: float = 0.0
    """Seconds from a request for a range to the start of its answer (latency), summed, concurrent ones included."""
    body_s: float = 0.0
    """Seconds from the start of an answer to its last byte (bandwidth), summed likewise."""
    retries: int = 0
    """Requests repeated after a failure."""
    stalls: int = 0
    """Requests given up because their bytes came too slowly."""
    hedges: int = 0
    """Second requests sent because the first was in the slow tail."""
    hedges_won: int = 0
    """Second requests that were answered before the first."""
    renewals: int = 0
    """Clients created anew after the store had refused access."""


store_counts = StoreCounts()

"""The one thread of this process that speaks to stores; everybody else hands it what is to be asked.

Requests run side by side in an asyncio loop: they can be given up at any moment, which a blocking call cannot.
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
"""For everything to come to rest when the interpreter ends."""


class _IoThread:
    """A loop in a daemon thread, stopped when the interpreter ends."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="penstock-remote", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    def run(self, asked: Coroutine[Any, Any, Result]) -> Result:
        future = asyncio.run_coroutine_threadsafe(asked, self._loop)
        try:
            _wakeups.wait_for(future)
            return future.result()
        except BaseException:  # Ctrl-C here: nobody waits for the answer any more
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
    """A pair of sockets: one end is waited at, the other one is rung."""

    def __init__(self) -> None:
        self._ends: tuple[socket.socket, ...] = ()
        self._ends = socket.socketpair()

    def ring(self, _: object) -> None:
        with suppress(OSError):  # nobody waits any more
            self._ends[1].send(b"x")

    def wait(self) -> None:
        self._ends[0].recv(1)

    def __del__(self) -> None:
        for end in self._ends:
            end.close()


class _Wakeups(threading.local):
    """One for each thread that waits for answers.

    Not a lock: whoever looks at the thread from outside, to say what a worker waits for, should see a network.
    """

    bell: _Wakeup | None = None

    def wait_for(self, future: Future[Any]) -> None:
        """Returns when it is done, or at once where there are no descriptors left to wait with."""
        try:
            bell, self.bell = self.bell or _Wakeup(), None  # one that an interrupt left unheard is not used again
        except OSError:
            return
        future.add_done_callback(bell.ring)
        bell.wait()
        self.bell = bell


_wakeups = _Wakeups()


def _foreign_threads_in_python() -> bool:
    """Whether a thread of the library's is still handing us an answer: an interpreter that ends meanwhile aborts."""
    ours = {thread.ident for thread in threading.enumerate()}
    return any(ident not in ours for ident in frames_by_thread())


_io_thread: _IoThread | None = None
_lock = threading.Lock()


def run_on_io_thread(asked: Coroutine[Any, Any, Result]) -> Result:
    """Do it in the channel's thread, and wait for what comes of it."""
    try:
        channel = _get_io_thread()
    except BaseException:
        asked.close()
        raise
    return channel.run(asked)


def _get_io_thread() -> _IoThread:
    global _io_thread
    with _lock:
        if _io_thread is None:
            _io_thread = _IoThread()
        if _io_thread.pid != os.getpid():
            raise StorageError(
                "an object store was read before this process was forked, and cannot be read after it",
                stage="open",
                advice="Start workers otherwise: DataLoader(..., multiprocessing_context='spawn')",
            )
        return _io_thread


@dataclass(slots=True)
class StoreCounts:
    """Sums since the start. Written by the channel's thread only."""

    requests: int = 0
    bytes_read: int = 0
    answers: int = 0
    """To requests for a range."""
    answer_s: float = 0.0
    """From asking until such an answer began to come: latency. Of all of them, side by side or not."""
    body_s: float = 0.0
    """From then until its last byte: bandwidth."""
    retries: int = 0
    """Requests made again after a failure."""
    stalls: int = 0
    """Requests given up because their bytes came too slowly."""
    hedges: int = 0
    """Second requests for the slow tail."""
    hedges_won: int = 0
    """Of these, those that were answered before the first."""
    renewals: int = 0
    """Stores made anew after a refusal."""


store_counts = StoreCounts()

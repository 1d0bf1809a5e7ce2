"""The base of sinks that work on a thread of their own, so that a slow receiver does not delay the training."""

from __future__ import annotations

import logging
import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from typing import ClassVar

from penstock.recording.format import AnyLine, LoaderLine, StepLine

log = logging.getLogger("penstock")

POLL_S = 0.25
"""Seconds between two checks of the queue. Waking the thread at every line would take the GIL from the training."""
MAX_QUEUED_LINES = 100_000
"""Lines that are queued while the receiver is stuck. Beyond that the oldest lines are dropped, and counted."""
CLOSE_TIMEOUT_S = 5.0
"""Seconds that the end of the run waits for a receiver."""


class AsyncSink(ABC):
    """A sink that handles its lines in order on a thread of its own.

    If it raises, it is disabled with one warning, and the training continues.
    """

    line_types: ClassVar[tuple[type, ...]] = (LoaderLine, StepLine)
    """The kinds of lines that the sink handles."""

    def __init__(self) -> None:
        self.disabled = False
        self._queue: deque[AnyLine] = deque(maxlen=MAX_QUEUED_LINES)
        self._dropped = 0
        self._closing = threading.Event()
        self._start_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    @abstractmethod
    def handle(self, line: AnyLine) -> None:
        """Handle one line, on the thread of the sink."""

    @abstractmethod
    def finish(self) -> None:
        """Handle the end of the lines and release what the sink holds."""

    def put(self, line: AnyLine) -> None:
        """Queue a line. In a forked process this does nothing, because the thread exists only in the parent."""
        if self.disabled or not isinstance(line, self.line_types) or os.getpid() != self._pid:
            return
        self._dropped += len(self._queue) == MAX_QUEUED_LINES
        self._queue.append(line)
        if self._thread is None:
            self._start()

    def close(self) -> None:
        """Handle the lines that are left, with a timeout. A second call does nothing."""
        if self._closing.is_set() or os.getpid() != self._pid:
            return
        self._closing.set()
        if self._thread is None:
            self._guarded_finish()
        else:
            self._thread.join(CLOSE_TIMEOUT_S)
            if self._thread.is_alive():
                log.warning(
                    "%s did not end within %g s: its last lines may be lost", type(self).__name__, CLOSE_TIMEOUT_S
                )
        self.disabled = True
        if self._dropped:
            log.warning("%s could not keep up: %d lines are lost", type(self).__name__, self._dropped)

    def _start(self) -> None:
        with self._start_lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"penstock-{type(self).__name__}", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        try:
            while not self._closing.wait(POLL_S):
                self._drain()
            self._drain()
        except Exception as error:
            self._fail(error)
        self._guarded_finish()

    def _drain(self) -> None:
        while self._queue:
            self.handle(self._queue.popleft())

    def _guarded_finish(self) -> None:
        """Call `finish`, also for a sink that has failed: it may hold a port or a file."""
        try:
            self.finish()
        except Exception as error:
            if not self.disabled:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.disabled = True
        self._queue.clear()
        log.warning("%s is switched off: %s: %s", type(self).__name__, type(error).__name__, error)

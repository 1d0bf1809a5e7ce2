"""A sink that does its work on a thread of its own: terminals, networks and disks may be slow, the training may not."""

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
"""Between looks at what has come: waking the thread at every line would take the interpreter from the training."""
WAITING = 100_000
"""Lines kept for a receiver that is stuck; beyond that the oldest are lost, and counted."""
CLOSING_S = 5.0
"""How long the end of the run waits for a receiver."""


class AsyncSink(ABC):
    """Takes lines in order. When it raises, it is switched off with one warning, and the training never hears of it."""

    wants: ClassVar[tuple[type, ...]] = (LoaderLine, StepLine)
    """The kinds of lines it cares for."""

    def __init__(self) -> None:
        self.off = False
        self._waiting: deque[AnyLine] = deque(maxlen=WAITING)
        self._lost = 0
        self._ending = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    @abstractmethod
    def take(self, line: AnyLine) -> None:
        """One line, on the sink's own thread."""

    @abstractmethod
    def end(self) -> None:
        """There are no more."""

    def put(self, line: AnyLine) -> None:
        """An append. A forked process keeps quiet: the thread is not its own."""
        if self.off or not isinstance(line, self.wants) or os.getpid() != self._pid:
            return
        self._lost += len(self._waiting) == WAITING
        self._waiting.append(line)
        if self._thread is None:
            self._start()

    def close(self) -> None:
        """Take what is left, but not for ever. A second call does nothing."""
        if self._ending.is_set() or os.getpid() != self._pid:
            return
        self._ending.set()
        if self._thread is None:
            self._guarded_end()
        else:
            self._thread.join(CLOSING_S)
            if self._thread.is_alive():
                log.warning("%s did not end within %g s: its last lines may be lost", type(self).__name__, CLOSING_S)
        self.off = True
        if self._lost:
            log.warning("%s could not keep up: %d lines are lost", type(self).__name__, self._lost)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"penstock-{type(self).__name__}", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ending.wait(POLL_S):
                self._drain()
            self._drain()
        except Exception as error:
            self._fail(error)
        self._guarded_end()

    def _drain(self) -> None:
        while self._waiting:
            self.take(self._waiting.popleft())

    def _guarded_end(self) -> None:
        """Also for a sink that failed: it may hold a port or a file."""
        try:
            self.end()
        except Exception as error:
            if not self.off:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.off = True
        self._waiting.clear()
        log.warning("%s is switched off: %s: %s", type(self).__name__, type(error).__name__, error)

"""Time as a thing you pass in, so that tests own it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What code that measures or waits needs to know of time."""

    def now(self) -> float:
        """Seconds on a clock that never goes backwards."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let that many seconds pass."""
        ...


class SystemClock:
    """The real one."""

    now = staticmethod(time.perf_counter)
    """Seconds from an arbitrary start: the function itself, since it is asked for at every phase of every step."""

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        time.sleep(seconds)


SYSTEM_CLOCK = SystemClock()

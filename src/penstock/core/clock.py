"""Time as a parameter, so that tests can pass a clock they control."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The part of a clock that code needs which measures or waits."""

    def now(self) -> float:
        """Return seconds on a clock that never goes backwards."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait for that many seconds."""
        ...


class SystemClock:
    """The clock of this machine."""

    now = staticmethod(time.perf_counter)
    """Seconds from an arbitrary start: the function itself, since it is called in every phase of every step."""

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        time.sleep(seconds)


SYSTEM_CLOCK = SystemClock()

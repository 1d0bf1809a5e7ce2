"""A bandwidth limit that several connections share."""

from __future__ import annotations

import threading

from penstock.core.clock import SYSTEM_CLOCK, Clock


class Throttle:
    """Divides a bandwidth between connections in the order of their calls; bandwidth that is not used is lost."""

    def __init__(self, bytes_per_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._free_s = clock.now()
        self._lock = threading.Lock()

    def delay_s(self, count: int) -> float:
        """Return the seconds until `count` bytes are sent, which is after the bytes of all earlier calls."""
        with self._lock:
            now = self._clock.now()
            self._free_s = max(now, self._free_s) + count / self._bytes_per_s
            return self._free_s - now

"""A clock that the test owns: time passes only when the test or a sleep moves it."""

from __future__ import annotations

import math
import threading

from penstock.errors import SettingError


class FakeClock:
    """A `penstock.core.clock.Clock` whose sleeps return at once and move the time instead."""

    def __init__(self, start: float = 0.0) -> None:
        self._start = start
        self._now = start
        self._sleeps = 0
        self._lock = threading.Lock()

    def now(self) -> float:
        """Return seconds since an arbitrary moment; they change only by `sleep` and `advance`."""
        with self._lock:
            return self._now

    def sleep(self, seconds: float) -> None:
        """Count a sleep of the code under test, and move the time forward by its length."""
        self._move(seconds, sleeps=1)

    def advance(self, seconds: float) -> None:
        """Move the time forward without a sleep; the test calls this."""
        self._move(seconds, sleeps=0)

    def _move(self, seconds: float, *, sleeps: int) -> None:
        if not (math.isfinite(seconds) and seconds >= 0):
            raise SettingError(f"time cannot move by {seconds} s")
        with self._lock:
            self._now += seconds
            self._sleeps += sleeps

    def __repr__(self) -> str:
        with self._lock:
            now, sleeps = self._now, self._sleeps
        return f"<FakeClock at {now:g} s: {now - self._start:g} s passed, slept {sleeps}×>"

"""Now and then, rather than at every step: by count or by time."""

from __future__ import annotations

from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.errors import SettingError
from penstock.samplers.epoch_batches import check_count


class Every:
    """True at the first call and at every n-th after it: `if every(): log(...)`. The same on every rank."""

    def __init__(self, n: int) -> None:
        check_count(n=n)
        self._n = n
        self._calls = -1

    def __call__(self) -> bool:
        """Whether it is time."""
        self._calls += 1
        return self._calls % self._n == 0


class Throttle:
    """True at the first call and then once in so many seconds: for bars and lines that people read.

    Each rank has a clock of its own: what all ranks must do together does not belong under it.
    """

    def __init__(self, seconds: float, clock: Clock = SYSTEM_CLOCK) -> None:
        if not seconds > 0:  # so put, NaN is refused too
            raise SettingError(f"seconds={seconds} is not above 0")
        self._seconds = seconds
        self._clock = clock
        self._next = clock.now()

    def __call__(self) -> bool:
        """Whether it is time."""
        now = self._clock.now()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True

"""When to do what not every step needs: by a number of calls, by time, or by a share of the time for evaluations."""

from __future__ import annotations

import sys
from math import ceil
from typing import Self

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
        """Count the call, and return whether the work is due."""
        self._calls += 1
        return self._calls % self._n == 0


class Throttle:
    """True at the first call and then at most once in that many seconds: for progress bars and printed lines.

    Each rank has its own clock, so collective work of all ranks must not depend on it.
    """

    def __init__(self, seconds: float, clock: Clock = SYSTEM_CLOCK) -> None:
        if not seconds > 0:  # a comparison with NaN is false, so NaN is refused too
            raise SettingError(f"seconds={seconds} is not above 0")
        self._seconds = seconds
        self._clock = clock
        self._next = clock.now()

    def __call__(self) -> bool:
        """Return whether the work is due."""
        now = self._clock.now()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True


class EvaluationBudget:
    """A schedule of evaluations that take at most a share of the time, whatever a step and an evaluation cost.

        budget = EvaluationBudget(0.05, first=500)
        for batch in loader:
            ...
            if budget.due():
                with budget:
                    evaluate()

    The first evaluation is after `first` steps. The longest one so far determines how many steps there are until the
    next. All ranks evaluate together, after as many steps as rank 0 has computed: each enters `with budget`.
    """

    def __init__(self, share: float = 0.05, *, first: int = 500, clock: Clock = SYSTEM_CLOCK) -> None:
        if not 0 < share < 1:
            raise SettingError(f"share={share} is not between 0 and 1")
        check_count(first=first)
        self.interval = first
        """Steps from the last evaluation to the next."""
        self._share = share
        self._clock = clock
        self._steps = 0
        self._longest_s = self._step_s = 0.0
        self._since = clock.now()

    def due(self) -> bool:
        """Count a step, and return whether to evaluate after it."""
        self._steps += 1
        return self._steps >= self.interval

    def __enter__(self) -> Self:
        now = self._clock.now()
        self._step_s = (now - self._since) / max(1, self._steps)
        self._since = now
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        now = self._clock.now()
        self._longest_s = max(self._longest_s, now - self._since)
        if error is None:
            self.interval = _from_rank_0(self._next_interval())
        self._steps = 0
        self._since = now

    def _next_interval(self) -> int:
        training_s = self._longest_s * (1 - self._share) / self._share
        return max(1, ceil(training_s / self._step_s)) if self._step_s > 0 else self.interval


def _from_rank_0(interval: int) -> int:
    """Return the interval of rank 0 if there are several ranks."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return interval
    shared = [interval]
    distributed.broadcast_object_list(shared, src=0)
    return int(shared[0])

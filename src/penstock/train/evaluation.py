"""How often to evaluate: as often as its share of the time allows."""

from __future__ import annotations

import sys
from math import ceil
from typing import Self

from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.errors import SettingError
from penstock.samplers.epoch_batches import check_count


class EvaluationBudget:
    """Evaluation that takes at most a share of the time, whatever a step and an evaluation turn out to cost.

        budget = EvaluationBudget(0.05, first=500)
        for batch in loader:
            ...
            if budget.due():
                with budget:
                    evaluate()

    The first one comes after `first` steps. The longest one so far says how many steps must lie before the next. All
    ranks evaluate together, after as many steps as rank 0 has reckoned out: each enters `with budget`.
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
        """Count a step; whether it is time to evaluate after it."""
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
            self.interval = _agreed(self._steps_between())
        self._steps = 0
        self._since = now

    def _steps_between(self) -> int:
        between_s = self._longest_s * (1 - self._share) / self._share
        return max(1, ceil(between_s / self._step_s)) if self._step_s > 0 else self.interval


def _agreed(interval: int) -> int:
    """What rank 0 says, where there are others."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return interval
    told = [interval]
    distributed.broadcast_object_list(told, src=0)
    return int(told[0])

"""A pass over a loader of the script's, and which of its steps are looked at."""

from __future__ import annotations

from typing import Any

from penstock.watcher.dataloader.main_process import queue_counter
from penstock.watcher.loader_views import count_samples
from penstock.watcher.session import Session, StepTracker
from penstock.watcher.step_sampling import PATIENCE_S, StepSampling

MARK = "_penstock_pass"
"""The attribute by which an iterator of torch's knows its pass; None of those that have none."""


class WatchedEpoch(StepTracker):
    """All that a step needs is in this one object: each other would be one more that is not in the caches."""

    def __init__(self, session: Session, loader: int, number: int, choice: StepSampling) -> None:
        super().__init__(session, loader, number, count_samples)
        self.unlooked = 0
        """Steps to come that are not looked at."""
        self.until = 0.0
        """None of them begins later than this, but one."""
        self.tasks: dict[int, Any] = {}
        self.workers: list[bool] = []
        self.queue_base, self.queue_sign, self.queue_asked = 0, 0, _nothing
        self.quick = False
        """Whether those say how the loader stands, as `torchloader.look` would."""
        self.made_s = 0.0
        """Making the iterator starts the workers: it belongs to the wait for the first batch."""
        self._choice = choice

    def mark(self, iterator: Any, made_s: float) -> None:
        """One of torch's has been made for it."""
        self.made_s = made_s
        setattr(iterator, MARK, self)
        if (found := queue_counter(iterator)) is not None:
            self.queue_base, self.queue_sign, self.queue_asked = found
            self.tasks, self.workers = iterator._task_info, iterator._workers_status
            self.quick = True

    def looks(self) -> None:
        """The step that begins is looked at."""
        self.unlooked = self._choice.unlooked_after(self.batch, self._asked)
        self.until = self._asked + PATIENCE_S

    def passes(self) -> None:
        """It is not."""
        self.unlooked = self.unlooked - 1 if self._asked < self.until else 0

    def ended(self, how: str = "done") -> None:
        """The next pass begins with steps that are looked at."""
        again, steps = self._ended, self.batch + (self._got is not None)
        super().ended(how)
        self.unlooked = 0
        if not again:
            self._choice.ended(steps)


def _nothing() -> int:
    """Where nobody counts."""
    return 0

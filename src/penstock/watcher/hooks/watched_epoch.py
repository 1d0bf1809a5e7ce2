"""One epoch over a loader of the script, and which of its steps are profiled."""

from __future__ import annotations

from typing import Any

from penstock.watcher.dataloader.main_process import queue_counter
from penstock.watcher.loader_views import count_samples
from penstock.watcher.session import Session, StepTracker
from penstock.watcher.step_sampling import PATIENCE_S, StepSampling

EPOCH_ATTRIBUTE = "_penstock_epoch"
"""The attribute of torch's iterators that holds their WatchedEpoch; None on the class, for those that have none."""


class WatchedEpoch(StepTracker):
    """The state of one epoch over one loader.

    All values that a step needs are attributes of this one object, because each other object would miss the CPU's
    caches.
    """

    def __init__(self, session: Session, loader: int, number: int, sampling: StepSampling) -> None:
        super().__init__(session, loader, number, count_samples)
        self.unprofiled_left = 0
        """The number of coming steps that are not profiled."""
        self.unprofiled_until = 0.0
        """Seconds on the session's clock; at most one step that is not profiled begins after it."""
        self.tasks: dict[int, Any] = {}
        """torch's `_task_info`."""
        self.workers: list[bool] = []
        """torch's `_workers_status`: whether each worker is active."""
        self.queue_base, self.queue_sign, self.queue_read = 0, 0, _zero
        """A `QueueCounter`: batches in the queue are base + sign x read()."""
        self.counts_directly = False
        """Whether `tasks`, `workers` and the counter are set and give the same as `main_process.queue_state`."""
        self.startup_s = 0.0
        """Seconds that making the iterator took. They count to the wait for the first batch: it starts the workers."""
        self._sampling = sampling

    def attach(self, iterator: Any, startup_s: float) -> None:
        """Attach this epoch to the iterator that torch made for it."""
        self.startup_s = startup_s
        setattr(iterator, EPOCH_ATTRIBUTE, self)
        if (counter := queue_counter(iterator)) is not None:
            self.queue_base, self.queue_sign, self.queue_read = counter
            self.tasks, self.workers = iterator._task_info, iterator._workers_status
            self.counts_directly = True

    def step_profiled(self) -> None:
        """Note that the step that begins is profiled, and decide how many after it are not."""
        self.unprofiled_left = self._sampling.unlooked_after(self.batch, self._asked)
        self.unprofiled_until = self._asked + PATIENCE_S

    def step_unprofiled(self) -> None:
        """Note that the step that begins is not profiled."""
        self.unprofiled_left = self.unprofiled_left - 1 if self._asked < self.unprofiled_until else 0

    def ended(self, how: str = "done") -> None:
        """End the epoch. The next one begins with profiled steps."""
        again, steps = self._ended, self.batch + (self._got is not None)
        super().ended(how)
        self.unprofiled_left = 0
        if not again:
            self._sampling.ended(steps)


def _zero() -> int:
    return 0

"""One epoch over a loader of the script, and which of its steps are profiled."""

from __future__ import annotations

from typing import Any

from penstock.watcher.dataloader.main_process import queue_counter
from penstock.watcher.loader_views import count_samples
from penstock.watcher.session import Session, StepTracker
from penstock.watcher.step_sampling import MAX_UNPROFILED_S, StepSampling

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
        """torch's `_task_info`: task number → its worker, and its batch if that arrived before its turn."""
        self.workers_active: list[bool] = []
        """torch's `_workers_status`, by worker."""
        self.queue_base, self.queue_sign, self.queue_read = 0, 0, _zero
        """A `QueueCounter`: batches in the queue are base + sign * read()."""
        self.counts_directly = False
        """Whether `tasks`, `workers_active` and the counter are set and give the same as `main_process.queue_state`."""
        self.startup_s = 0.0
        """Seconds that making the iterator took, which starts workers. They count to the wait for the first batch."""
        self._sampling = sampling

    def attach(self, iterator: Any, startup_s: float) -> None:
        """Attach this epoch to the iterator that torch made for it."""
        self.startup_s = startup_s
        setattr(iterator, EPOCH_ATTRIBUTE, self)
        if (counter := queue_counter(iterator)) is not None:
            self.queue_base, self.queue_sign, self.queue_read = counter
            self.tasks, self.workers_active = iterator._task_info, iterator._workers_status
            self.counts_directly = True

    def step_profiled(self) -> None:
        """Note that the step that begins is profiled, and decide how many after it are not."""
        self.unprofiled_left = self._sampling.unprofiled_after(self.batch, self._requested_s)
        self.unprofiled_until = self._requested_s + MAX_UNPROFILED_S

    def step_unprofiled(self) -> None:
        """Note that the step that begins is not profiled."""
        self.unprofiled_left = self.unprofiled_left - 1 if self._requested_s < self.unprofiled_until else 0

    def end(self, how: str = "done") -> None:
        """End the epoch. The next one begins with profiled steps."""
        ended_before, steps = self._ended, self.batch + (self._received_s is not None)
        super().end(how)
        self.unprofiled_left = 0
        if not ended_before:
            self._sampling.end_epoch(steps)


def _zero() -> int:
    return 0

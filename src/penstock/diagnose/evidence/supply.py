"""Supply and demand: how many batches the workers make in a second, and how many the loop could take.

A short run may live on batches that were made ahead while its first steps were slow. It then hardly waits, although
its workers are too slow, and a longer run would wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, inf

import numpy as np

from penstock.core.arrays import trimmed_mean
from penstock.core.format import format_short
from penstock.diagnose.evidence.loop import LoopEvidence
from penstock.diagnose.evidence.settings import SettingsEvidence
from penstock.diagnose.evidence.workers import WorkerEvidence

SHORTAGE_MIN = 0.1
"""Share of the demand that the supply lacks: less is within the error of the two rates."""
SEEN_MAX = 0.7
"""A run that waits for this share of what supply and demand predict, or more, shows its shortage itself."""
BUSY_MIN = 0.85
"""Share of their time in which workers make batches, from which on their number limits the supply."""
STEPS_AFTER = 20
"""Steps after the stock is used up that a verdict on the waits needs, besides two rounds of all outstanding tasks."""


@dataclass(frozen=True)
class SupplyEvidence:
    """The rate of the workers against that of the steps, and the stock of batches that were ready at the start."""

    settings: SettingsEvidence
    loop: LoopEvidence
    workers: WorkerEvidence

    @cached_property
    def supply_batches_s(self) -> float:
        """Batches per second that the workers make if they never wait for a task; infinite if that is not known."""
        seconds = trimmed_mean(self.workers.fetch_s) if self.settings.num_workers else 0.0
        return self.workers.effective_workers / seconds if seconds > 0 else inf

    @cached_property
    def demand_batches_s(self) -> float:
        """Batches per second that the loop would take if it never waited."""
        step_s = trimmed_mean(self.loop.busy_s)
        return 1 / step_s if step_s > 0 else inf

    @property
    def shortage(self) -> float:
        """Share of the time that a long run waits, by these two rates; 0 if the supply is enough."""
        return max(0.0, 1 - self.supply_batches_s / self.demand_batches_s) if self.demand_batches_s < inf else 0.0

    @cached_property
    def stock(self) -> int:
        """Number of batches that were ready when the first steady step requested its batch."""
        ready = self.loop.ready_batches
        return max(0, int(ready[0])) if len(ready) else 0

    @property
    def stock_steps(self) -> int:
        """Number of steps that the stock lasts: each takes one batch, and meanwhile the workers make a part of one."""
        return ceil(self.stock / self.shortage) if self.shortage > 0 else 0

    @cached_property
    def lives_on_stock(self) -> bool:
        """Whether the run is too short to show its shortage: it used up what had been made ahead."""
        steps, outstanding = len(self.loop.steps), self.settings.num_workers * self.settings.prefetch_factor
        if self.shortage < SHORTAGE_MIN or self.stock < self.settings.num_workers or self._busy_share < BUSY_MIN:
            return False
        waits_less = self.loop.wait_share < SEEN_MAX * self.shortage
        return waits_less and steps <= self.stock_steps + 2 * outstanding + STEPS_AFTER

    @property
    def _busy_share(self) -> float:
        """Share of the workers' time in which they make batches: of steady time, without tasks that were cut off."""
        if not len(self.workers.fetches) or not self.loop.steps:
            return 0.0
        begin_s, last = self.loop.steps[0].at_s, self.loop.steps[-1]
        outstanding = self.settings.num_workers * self.settings.prefetch_factor
        end_s = self.loop.steps[max(0, len(self.loop.steps) - outstanding)].at_s  # later there are no more tasks
        end_s = end_s if end_s > begin_s else last.at_s + last.wait_s + last.step_s
        began_s = np.array([fetch.at_s for fetch in self.workers.fetches])
        inside = np.minimum(began_s + self.workers.fetch_s, end_s) - np.maximum(began_s, begin_s)
        busy_s = float(np.maximum(inside, 0.0).sum())
        return busy_s / (self.workers.effective_workers * (end_s - begin_s)) if end_s > begin_s else 0.0

    @property
    def steps_needed(self) -> int:
        """Number of steps after which the waits of such a run show its shortage."""
        outstanding = self.settings.num_workers * self.settings.prefetch_factor
        return self.stock_steps + 2 * outstanding + STEPS_AFTER

    @property
    def text(self) -> str:
        """Both rates and what a longer run will do, as a sentence without its full stop."""
        return (
            f"the workers make {format_short(self.supply_batches_s)} batches/s and the steps could take "
            f"{format_short(self.demand_batches_s)}; the {self.stock} batches that were ready at the start last "
            f"{self.stock_steps} steps, after which the loop waits {self.shortage:.0%} of the time"
        )

"""The decisions of an AdaptiveLoader: from the measurements of a window of steps to the settings to use next.

While the loop waits for data, workers are added: as many as would remove the wait if each made as many batches as the
present ones, and at most twice as many. A change that gains less than 3% is reverted, and that setting then stays, so
that it does not oscillate. Where more workers do not help, a deeper prefetch is tried in the same manner. When memory
is short, workers are removed for good.

Nothing here starts a process or reads a clock; the limits on workers and memory are those of plan/worker_count.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from statistics import median
from typing import Protocol

from penstock.core.format import format_bytes
from penstock.plan.memory import MemoryNeed, fits, torch_need
from penstock.plan.profiles import MAX_PREFETCH, RUN_VARIATION, profile_goal
from penstock.plan.worker_count import MAX_WORKERS
from penstock.tuner.result import WorkerSettings

MIN_WAIT_SHARE = 0.1
"""Share of the loop's time in the loader from which on a change is worth it: a smaller one cannot gain more."""
MIN_GAIN = RUN_VARIATION
"""Gain that a change must have; two runs of the same settings differ by about as much."""
GROWTH_SHARE = profile_goal("balanced").memory_share
"""Share of the free memory for new workers and their batches; the rest is for the page cache and the training.

The ranks of one machine, which may all grow at the same moment, divide it.
"""
PRESSURE = 0.1
"""Free memory over the memory of the loader below which the next allocation may fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowStats:
    """Measurements of a window of steps: whole rounds of the workers, without the warm-up."""

    batches: int
    wait_s: float
    """Time of all steps in the loader."""
    compute_s: float
    """Time of all steps outside of the loader."""
    batch_bytes: int = 0
    worker_bytes: int = 0
    """Private memory of one worker."""
    free_bytes: int | None = None
    """Memory that can still be allocated; None where it is not known."""

    @property
    def rate(self) -> float:
        """Batches per second."""
        seconds = self.wait_s + self.compute_s
        return self.batches / seconds if seconds > 0 else 0.0

    @property
    def wait_share(self) -> float:
        """Share of the loop's time in the loader."""
        seconds = self.wait_s + self.compute_s
        return self.wait_s / seconds if seconds > 0 else 0.0

    def need(self, setting: WorkerSettings) -> MemoryNeed:
        """Return the memory of a loader with these settings, with batches and workers of the measured size."""
        return torch_need(
            workers=setting.workers,
            prefetch=setting.prefetch,
            batch_bytes=self.batch_bytes,
            worker_bytes=self.worker_bytes,
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """The settings to use, and the reason."""

    setting: WorkerSettings
    reason: str
    overlap: bool = True
    """Whether the new workers may start while the old ones finish; not if memory is short."""

    def __str__(self) -> str:
        return f"{self.setting}: {self.reason}"


class Policy(Protocol):
    """The interface of a controller to the loader."""

    setting: WorkerSettings
    """The settings in force."""

    def decide(self, stats: WindowStats) -> Decision | None:
        """Return the decision after a window; None if there is nothing to change or to report."""
        ...

    def refused(self, reason: str) -> Decision:
        """Report that the last change could not be made; return the settings to use instead."""
        ...


@dataclass(frozen=True, slots=True)
class _Change:
    """A change whose effect is not measured yet."""

    before: WorkerSettings
    stats: WindowStats
    """Measurements before the change."""


class AdaptivePolicy:
    """The default controller; its state is what it has tried."""

    def __init__(
        self,
        setting: WorkerSettings,
        *,
        workers_pinned: bool = False,
        prefetch_pinned: bool = False,
        max_workers: int = MAX_WORKERS,
        ranks: int = 1,
        synchronous: bool = False,
    ) -> None:
        """`ranks` share this machine; `synchronous`: the loop waits for other ranks, on any machine, in every step."""
        self.setting = setting
        self._workers_pinned = workers_pinned
        self._workers_final = workers_pinned
        self._prefetch_final = prefetch_pinned
        self.max_workers = max_workers
        """Limit on the number of workers."""
        self._ranks = ranks
        self._synchronous = synchronous
        self._change: _Change | None = None
        self._before = setting
        self._pressure_reported = False

    def decide(self, stats: WindowStats) -> Decision | None:
        """Change at most one setting; leave a loader without workers alone, because the user chose it."""
        if not self.setting.workers:
            return None
        return self._shrink(stats) or self._judge_change(stats) or self._grow(stats)

    def refused(self, reason: str) -> Decision:
        """Return to the settings before the last change, for good."""
        return self._revert(self._before, f"{self.setting} cannot be used ({reason})")

    # -- fewer workers ---------------------------------------------------------------------------------------------

    def _shrink(self, stats: WindowStats) -> Decision | None:
        """Halve the workers for good if memory is short."""
        held_bytes, free = stats.need(self.setting).total_bytes, stats.free_bytes
        if free is None or free >= PRESSURE * held_bytes:
            return None
        reason = f"{format_bytes(free)} of memory are free and the loader holds {format_bytes(held_bytes)}"
        workers = self.setting.workers // 2
        if self._workers_pinned or workers < 1:
            if self._pressure_reported:
                return None
            self._pressure_reported = True
            why = "was set by the user" if workers else "cannot be lower"
            return Decision(self.setting, f"{reason}, but num_workers {why}")
        self._change, self._workers_final, self._prefetch_final = None, True, True
        return replace(self._use(replace(self.setting, workers=workers), reason), overlap=False)

    def _judge_change(self, stats: WindowStats) -> Decision | None:
        """Revert the last change if it was not worth it."""
        change, self._change = self._change, None
        if change is None or stats.rate >= change.stats.rate * (1 + MIN_GAIN):
            return None
        if self._waits_less(change.stats, stats):
            return None
        gain = stats.rate / change.stats.rate - 1 if change.stats.rate > 0 else 0.0
        return self._revert(change.before, f"{self.setting} gained {gain:.1%}, less than {MIN_GAIN:.0%}")

    def _waits_less(self, before: WindowStats, stats: WindowStats) -> bool:
        """Return whether this rank waits less: the slowest rank sets the rate, so only its own wait shows a gain."""
        return self._synchronous and stats.wait_share <= before.wait_share - MIN_GAIN

    def _revert(self, before: WorkerSettings, reason: str) -> Decision:
        self._make_final(before)
        self._change = None
        return self._use(before, f"{reason}; back, and staying")

    def _make_final(self, other: WorkerSettings) -> None:
        """Stop changing the setting in which `other` differs from the settings in force."""
        if other.workers != self.setting.workers:
            self._workers_final = True
        else:
            self._prefetch_final = True

    # -- more workers ----------------------------------------------------------------------------------------------

    def _grow(self, stats: WindowStats) -> Decision | None:
        if stats.wait_share < MIN_WAIT_SHARE:
            return None
        waits = f"the loop waits {stats.wait_share:.0%} of its time for data"
        if not self._workers_final and self.setting.workers < self.max_workers:
            return self._try(self._more_workers(stats), stats, waits)
        if not self._prefetch_final and self.setting.prefetch < MAX_PREFETCH:
            deeper = replace(self.setting, prefetch=2 * self.setting.prefetch)
            return self._try(deeper, stats, f"{waits}, and the number of workers stays")
        return None

    def _more_workers(self, stats: WindowStats) -> WorkerSettings:
        """Return the settings with enough workers for one batch per step, by the law W/S, at most twice as many."""
        now = self.setting.workers
        enough = ceil(now / (1 - stats.wait_share)) if stats.wait_share < 0.5 else 2 * now
        return replace(self.setting, workers=min(self.max_workers, 2 * now, max(now + 1, enough)))

    def _try(self, setting: WorkerSettings, stats: WindowStats, reason: str) -> Decision:
        """Use the settings if they fit into memory beside the present ones: for a while both loaders exist."""
        need, free = stats.need(setting), stats.free_bytes
        if free is not None and not fits(need, free // self._ranks, share=GROWTH_SHARE):
            self._make_final(setting)
            memory = (
                f"{setting} would take {format_bytes(need.total_bytes)} of memory, and {format_bytes(free)} are free"
            )
            return Decision(self.setting, f"{reason}, but {memory}")
        self._change = _Change(self.setting, stats)
        return self._use(setting, reason)

    def _use(self, setting: WorkerSettings, reason: str) -> Decision:
        self._before, self.setting = self.setting, setting
        return Decision(setting, reason)


MIN_ROUNDS = 8
"""Rounds of the workers in a window at least: in-order delivery is periodic with one round."""
MIN_WINDOW_S = 1.0
"""Duration of a window at least: shorter ones show the noise of the machine rather than the effect of settings."""
MAX_STEP_FACTOR = 5.0
"""A step longer than this many median steps is a pause (evaluation, a checkpoint), and counts as this many."""


class StepWindow:
    """Consecutive steps with the same settings."""

    def __init__(self) -> None:
        self._waits_s: list[float] = []
        self._computes_s: list[float] = []
        self._seconds = 0.0

    def reset(self) -> None:
        """Start a new window, because the settings changed or a decision was made."""
        self._waits_s.clear()
        self._computes_s.clear()
        self._seconds = 0.0

    def add(self, wait_s: float, compute_s: float) -> None:
        """Add one step."""
        self._waits_s.append(wait_s)
        self._computes_s.append(compute_s)
        self._seconds += wait_s + compute_s

    def is_full(self, workers: int) -> bool:
        """Return whether there are enough steps for a decision, and a round of the workers has just ended."""
        rounds, rest = divmod(len(self._waits_s), max(1, workers))
        return rounds >= MIN_ROUNDS and rest == 0 and self._seconds >= MIN_WINDOW_S

    def stats(self, *, batch_bytes: int, worker_bytes: int, free_bytes: int | None) -> WindowStats:
        """Return the measurements of the window."""
        usual_s = median(self._computes_s)
        return WindowStats(
            batches=len(self._waits_s),
            wait_s=sum(self._waits_s),
            compute_s=sum(min(compute_s, MAX_STEP_FACTOR * usual_s) for compute_s in self._computes_s),
            batch_bytes=batch_bytes,
            worker_bytes=worker_bytes,
            free_bytes=free_bytes,
        )

"""When a loader should have other settings while it runs. Pure: what was seen in, what to do out.

While the loop waits for data, workers are added: as many as would cover the wait if each made as much as those there
are, twice as many at most. What does not gain 3% is taken back, and then that knob stays: no oscillation. Where workers
are no help, a deeper prefetch is tried in the same way. Short memory takes workers away, for good.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from statistics import median
from typing import Protocol

from penstock.core.format import format_bytes
from penstock.tuner.result import Setting

WAITING = 0.1
"""Share of the loop's time in the loader from which on it is worth acting: less cannot gain more."""
GAIN = 0.03
"""Two runs of the same settings differ by about this."""
MOST_WORKERS = 64
MOST_PREFETCH = 16
GROWTH_SHARE = 0.5
"""Of the free memory, for the new workers and their batches: the page cache and the training want some, too.

Ranks of one machine, which may all grow at the same moment, divide it.
"""
PRESSURE = 0.1
"""Free memory below such a part of what the loader itself holds: the next allocation may be the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowStats:
    """What a window of steps was like: whole rounds of the workers, the warm-up left out."""

    batches: int
    wait_s: float
    """In the loader, all steps together."""
    compute_s: float
    """Out of it."""
    batch_bytes: int = 0
    worker_bytes: int = 0
    """Of one worker, for itself."""
    free_bytes: int | None = None
    """That could still be taken; None where nobody knows."""

    @property
    def rate(self) -> float:
        """Batches per second."""
        seconds = self.wait_s + self.compute_s
        return self.batches / seconds if seconds > 0 else 0.0

    @property
    def wait_share(self) -> float:
        """Of the loop's time, in the loader."""
        seconds = self.wait_s + self.compute_s
        return self.wait_s / seconds if seconds > 0 else 0.0

    def held_bytes(self, setting: Setting) -> int:
        """By a loader with that setting: the batches ahead, one in the making per worker, and the workers."""
        each = self.worker_bytes + (setting.prefetch + 1) * self.batch_bytes
        return setting.workers * each


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, and why."""

    setting: Setting
    reason: str
    overlap: bool = True
    """Whether the new workers may start while the old ones finish: not where memory is short."""

    def __str__(self) -> str:
        return f"{self.setting}: {self.reason}"


class Policy(Protocol):
    """What the loader asks."""

    setting: Setting
    """In force."""

    def decide(self, seen: WindowStats) -> Decision | None:
        """What to change after such a window; None: nothing, and nothing to say."""
        ...

    def refused(self, reason: str) -> Decision:
        """The last change could not be made: what holds instead."""
        ...


@dataclass(frozen=True, slots=True)
class _SettingTrial:
    """A change whose effect is yet to be seen."""

    before: Setting
    seen: WindowStats


class AdaptivePolicy:
    """Remembers what was tried, nothing else."""

    def __init__(
        self,
        setting: Setting,
        *,
        workers_pinned: bool = False,
        prefetch_pinned: bool = False,
        most_workers: int = MOST_WORKERS,
        ranks: int = 1,
        in_step: bool = False,
    ) -> None:
        """`ranks` share this machine; `in_step`: the loop goes on when the slowest rank does, here or elsewhere."""
        self.setting = setting
        self._workers_pinned = workers_pinned
        self._workers_stay = workers_pinned
        self._prefetch_stays = prefetch_pinned
        self._most = most_workers
        self._ranks = ranks
        self._in_step = in_step
        self._trial: _SettingTrial | None = None
        self._before = setting
        self._complained = False

    def decide(self, seen: WindowStats) -> Decision | None:
        """One knob at a time."""
        if not self.setting.workers:
            return None  # the loop makes its batches itself, because the user says so
        return self._back_off(seen) or self._judge(seen) or self._grow(seen)

    def refused(self, reason: str) -> Decision:
        """What was before the last change holds, and stays."""
        return self._return_to(self._before, f"{self.setting} cannot be had ({reason})")

    # -- less ------------------------------------------------------------------------------------------------------

    def _back_off(self, seen: WindowStats) -> Decision | None:
        held, free = seen.held_bytes(self.setting), seen.free_bytes
        if free is None or free >= PRESSURE * held:
            return None
        short = f"{format_bytes(free)} of memory are free and the loader holds {format_bytes(held)}"
        workers = self.setting.workers // 2
        if self._workers_pinned or workers < 1:
            if self._complained:
                return None
            self._complained = True
            return Decision(self.setting, f"{short}, but num_workers is {'yours' if workers else 'at its least'}")
        self._trial, self._workers_stay, self._prefetch_stays = None, True, True
        return replace(self._turn(replace(self.setting, workers=workers), short), overlap=False)

    def _judge(self, seen: WindowStats) -> Decision | None:
        """Whether the last change was worth it."""
        trial, self._trial = self._trial, None
        if trial is None or seen.rate >= trial.seen.rate * (1 + GAIN) or self._waits_less(trial.seen, seen):
            return None
        gained = seen.rate / trial.seen.rate - 1 if trial.seen.rate > 0 else 0.0
        return self._return_to(trial.before, f"{self.setting} gained {gained:.1%}, less than {GAIN:.0%}")

    def _waits_less(self, before: WindowStats, seen: WindowStats) -> bool:
        """Among ranks the last sets the pace: what one of them gained shows in its own waiting alone."""
        return self._in_step and seen.wait_share <= before.wait_share - GAIN

    def _return_to(self, before: Setting, reason: str) -> Decision:
        self._stay(before)
        self._trial = None
        return self._turn(before, f"{reason}; back, and staying")

    def _stay(self, other: Setting) -> None:
        """The knob by which that setting differs from the one in force is not turned any more."""
        if other.workers != self.setting.workers:
            self._workers_stay = True
        else:
            self._prefetch_stays = True

    # -- more ------------------------------------------------------------------------------------------------------

    def _grow(self, seen: WindowStats) -> Decision | None:
        if seen.wait_share < WAITING:
            return None
        waits = f"the loop waits {seen.wait_share:.0%} of its time for data"
        if not self._workers_stay and self.setting.workers < self._most:
            return self._try(self._more_workers(seen), seen, waits)
        if not self._prefetch_stays and self.setting.prefetch < MOST_PREFETCH:
            deeper = replace(self.setting, prefetch=2 * self.setting.prefetch)
            return self._try(deeper, seen, f"{waits}, and the number of workers stays")
        return None

    def _more_workers(self, seen: WindowStats) -> Setting:
        """W workers that make W/S batches a second are enough if that is one per step."""
        now = self.setting.workers
        covers = ceil(now / (1 - seen.wait_share)) if seen.wait_share < 0.5 else 2 * now
        return replace(self.setting, workers=min(self._most, 2 * now, max(now + 1, covers)))

    def _try(self, setting: Setting, seen: WindowStats, reason: str) -> Decision:
        need = seen.held_bytes(setting)  # beside what is held now: for a while both are there
        if seen.free_bytes is not None and need > GROWTH_SHARE * seen.free_bytes / self._ranks:
            self._stay(setting)
            room = f"{setting} would take {format_bytes(need)} of memory, and {format_bytes(seen.free_bytes)} are free"
            return Decision(self.setting, f"{reason}, but {room}")
        self._trial = _SettingTrial(self.setting, seen)
        return self._turn(setting, reason)

    def _turn(self, setting: Setting, reason: str) -> Decision:
        self._before, self.setting = self.setting, setting
        return Decision(setting, reason)


ROUNDS = 8
"""Of the workers, that a window has at least: in-order delivery repeats itself after every one."""
LEAST_S = 1.0
"""That it lasts: shorter ones say more about the machine's mood than about the settings."""
PAUSE = 5.0
"""A step that takes so many times the usual is a pause (evaluation, a checkpoint), and counts as that many."""


class StepWindow:
    """Steps of one setting, one after the other."""

    def __init__(self) -> None:
        self._waits_s: list[float] = []
        self._computes_s: list[float] = []
        self._seconds = 0.0

    def reset(self) -> None:
        """Begin anew: there is another setting, or a decision was made."""
        self._waits_s.clear()
        self._computes_s.clear()
        self._seconds = 0.0

    def note(self, wait_s: float, compute_s: float) -> None:
        """One step."""
        self._waits_s.append(wait_s)
        self._computes_s.append(compute_s)
        self._seconds += wait_s + compute_s

    def full(self, workers: int) -> bool:
        """Whether there is enough to decide on, and a round of the workers is just over."""
        rounds, rest = divmod(len(self._waits_s), max(1, workers))
        return rounds >= ROUNDS and rest == 0 and self._seconds >= LEAST_S

    def seen(self, *, batch_bytes: int, worker_bytes: int, free_bytes: int | None) -> WindowStats:
        """All of it."""
        usual = median(self._computes_s)
        return WindowStats(
            batches=len(self._waits_s),
            wait_s=sum(self._waits_s),
            compute_s=sum(min(compute_s, PAUSE * usual) for compute_s in self._computes_s),
            batch_bytes=batch_bytes,
            worker_bytes=worker_bytes,
            free_bytes=free_bytes,
        )

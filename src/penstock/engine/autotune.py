"""Decides what to change while running, from what the hops did since the last look. Pure: no threads, no clock.

One change a look, so that its effect can be seen at the next. A knob whose least and most are the same was set by the
user, or has nowhere to go: it is never touched.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock.core.hops import Hop, HopMeter, HopState
from penstock.core.stats import EngineStats
from penstock.engine.block_cache import BlockCache
from penstock.engine.dispatch import Dispatch
from penstock.engine.output_queue import OutputQueue
from penstock.engine.readers import Readers

WAITS = 0.02
"""The training loop may wait for this share of its time: below it, nothing is worth changing."""
FULL = 0.85
"""A hop that works for more than this share of its time is the bottleneck."""
HUNGRY = 0.10
"""Workers that starve for more than this share wait for reading."""
HELD_UP = 0.04
"""Workers that may not begin for more than this share, though the loop waits, have too few batches to work on."""
FASTER = 1.05
"""Reading has to gain this much by more reads in flight, or they are taken back."""
HELPED = 1.03
"""More batches in the making have to gain this much of samples per second, or there will be no more for a while."""
NO_SLOWER = 0.97
"""With fewer reads in flight, reading may lose this much and they stay fewer: seeks and servers are spared."""
HANDOVER = 0.10
"""If more than this share of a worker's time goes into waiting for the next task, tasks are too small."""
MOST_TASK_S = 0.064
REST = 60
"""Looks before a knob that gave nothing is tried again: storage may have become better or worse."""
SETTLING = 2
"""Looks from one more look-ahead to the next: in the first, the memory of the new batches is made."""


@dataclass(frozen=True, slots=True)
class Knob:
    """A number that may be turned between two others."""

    now: int
    least: int
    most: int

    def __post_init__(self) -> None:
        assert self.least <= self.now <= self.most, self

    def toward(self, value: int) -> int:
        """The nearest it can go."""
        return max(self.least, min(self.most, value))


@dataclass(frozen=True, slots=True)
class Knobs:
    """All there is to turn."""

    readers: Knob
    """Reads in flight."""
    workers: Knob
    look_ahead: Knob
    """Batches in the making or ready, ahead of the one the training loop has."""
    task_s: float
    """Work handed to a worker at a time."""

    def turned(self, change: KnobChange) -> Knobs:
        """As they stand after a change."""
        new = int(change.new)
        match change.name:
            case "readers":
                return replace(self, readers=replace(self.readers, now=new))
            case "workers":
                return replace(self, workers=replace(self.workers, now=new))
            case "look_ahead":
                return replace(self, look_ahead=replace(self.look_ahead, now=new))
        return replace(self, task_s=change.new)


@dataclass(frozen=True, slots=True)
class TuningWindow:
    """What happened between two looks."""

    seconds: float
    waited_s: float
    """By the training loop, for a batch."""
    bytes_read: int
    read: Hop
    decode: Hop
    decoding_s: float
    """As the workers themselves count it: the rest of what we saw as busy went into handing over."""
    tasks: int
    samples: int

    @property
    def waited(self) -> float:
        """Share of the time in which the training loop had nothing to do."""
        return self.waited_s / self.seconds

    @property
    def mb_per_s(self) -> float:
        """Read from storage."""
        return self.bytes_read / self.seconds / 1e6


@dataclass(frozen=True, slots=True)
class KnobChange:
    """One knob, turned."""

    name: str
    old: float
    new: float
    reason: str

    def __str__(self) -> str:
        return f"{self.name} {self.old:g} → {self.new:g}: {self.reason}"


@dataclass(slots=True)
class _ReaderTrial:
    """A change of readers whose effect is yet to be seen."""

    old: int
    mb_per_s: float


class AutotunePolicy:
    """Remembers what was tried, nothing else."""

    def __init__(self) -> None:
        self._trial: _ReaderTrial | None = None
        self._grown_at: float | None = None
        """Samples per second before there were more batches in the making, until that can be judged."""
        self._judged: float | None = None
        """The same, in the look that judges it: later ones are of other times."""
        self._rests: dict[str, int] = {}

    def look(self, window: TuningWindow, knobs: Knobs) -> KnobChange | None:
        """What to turn, if anything."""
        self._rests = {name: left - 1 for name, left in self._rests.items() if left > 1}
        if "look_ahead" not in self._rests:
            self._judged, self._grown_at = self._grown_at, None
        if self._trial is not None:
            return self._judge(self._trial, window, knobs.readers)
        if window.waited < WAITS:
            return None
        rules: tuple[Callable[[TuningWindow, Knobs], KnobChange | None], ...] = (
            _tasks,
            self._readers,
            _workers,
            self._look_ahead,
        )
        return next((change for rule in rules if (change := rule(window, knobs)) is not None), None)

    def _readers(self, window: TuningWindow, knobs: Knobs) -> KnobChange | None:
        """Reading is the bottleneck: try twice as many reads in flight; where there is no more, try half."""
        knob = knobs.readers
        if not _reading_limits(window) or "readers" in self._rests:
            return None
        new = knob.toward(2 * knob.now)
        if new == knob.now:
            return None
        self._trial = _ReaderTrial(knob.now, window.mb_per_s)
        return KnobChange(
            "readers",
            knob.now,
            new,
            f"workers starved {window.decode.starved:.0%} of the time with every read in flight; "
            f"trying for more than {window.mb_per_s:.0f} MB/s",
        )

    def _judge(self, trial: _ReaderTrial, window: TuningWindow, knob: Knob) -> KnobChange | None:
        """Keep what helped; after more was no help, try fewer once; then rest."""
        self._trial = None
        before, after = trial.mb_per_s, window.mb_per_s
        if knob.now > trial.old:
            if after >= FASTER * before:
                return None
            fewer = knob.toward(trial.old // 2)
            if fewer < trial.old and _reading_limits(window):
                self._trial = _ReaderTrial(trial.old, max(before, after))
                return KnobChange("readers", knob.now, fewer, f"{after:.0f} MB/s after {before:.0f}: trying fewer")
            self._rests["readers"] = REST
            return KnobChange("readers", knob.now, trial.old, f"{after:.0f} MB/s after {before:.0f}: more is no help")
        fewer = knob.toward(knob.now // 2)
        if after >= FASTER * before and fewer < knob.now:
            self._trial = _ReaderTrial(knob.now, after)
            return KnobChange("readers", knob.now, fewer, f"{after:.0f} MB/s after {before:.0f}: fewer are better")
        self._rests["readers"] = REST
        if after >= NO_SLOWER * before:
            return None
        return KnobChange("readers", knob.now, trial.old, f"{after:.0f} MB/s after {before:.0f}: fewer are too few")

    def _look_ahead(self, window: TuningWindow, knobs: Knobs) -> KnobChange | None:
        """Workers have nothing to begin and the loop waits all the same: batches wait for single samples, or for the
        tasks that are in everybody's hands. Have more begun, as long as that helps."""
        knob = knobs.look_ahead
        if knob.now == knob.most or window.decode.blocked <= HELD_UP or "look_ahead" in self._rests:
            return None
        rate = window.samples / window.seconds
        if self._judged is not None and rate < HELPED * self._judged:
            self._rests["look_ahead"] = REST
            return None
        self._grown_at, self._rests["look_ahead"] = rate, SETTLING
        return KnobChange(
            "look_ahead",
            knob.now,
            knob.toward(knob.now + max(1, knob.now // 2)),
            f"workers waited {window.decode.blocked:.0%} of the time for a batch to be taken "
            f"while the training loop waited {window.waited:.0%} for one to be complete",
        )


def _reading_limits(window: TuningWindow) -> bool:
    return window.read.busy > FULL and window.decode.starved > HUNGRY


def _workers(window: TuningWindow, knobs: Knobs) -> KnobChange | None:
    """Decoding is the bottleneck: twice the workers, while there are cores; idle ones would cost no CPU."""
    knob = knobs.workers
    new = knob.toward(2 * knob.now)
    if window.decode.busy <= FULL or new == knob.now:
        return None
    return KnobChange(
        "workers",
        knob.now,
        new,
        f"they were busy {window.decode.busy:.0%} of the time while the training loop waited {window.waited:.0%}",
    )


def _tasks(window: TuningWindow, knobs: Knobs) -> KnobChange | None:
    """Workers wait between tasks although there is work: handing over costs too much, so hand over more at a time."""
    lost = window.decode.busy_s - window.decoding_s
    if window.tasks < 50 or lost < HANDOVER * window.decode.busy_s or knobs.task_s >= MOST_TASK_S:
        return None
    share = lost / window.decode.busy_s
    return KnobChange("task_s", knobs.task_s, min(MOST_TASK_S, 2 * knobs.task_s), f"{share:.0%} went into handing over")


log = logging.getLogger("penstock")

LOOK_S = 1.0
"""Between two looks: many batches for a fast loader, and for a slow one soon enough."""
KEPT_CHANGES = 100


class Autotuner:
    """Owned by the conductor's thread; `stats` may be called from any."""

    def __init__(
        self, residency: BlockCache, readers: Readers, dispatch: Dispatch, shelf: OutputQueue, knobs: Knobs
    ) -> None:
        self.knobs = knobs
        self.batches = self.samples = self.reads = self.bytes_read = 0
        self._residency = residency
        self._readers = readers
        self._dispatch = dispatch
        self._shelf = shelf
        self._controller = AutotunePolicy()
        self._read = HopMeter("read")
        self._decode = HopMeter("decode")
        self._before: EngineStats | None = None
        """When the window began."""
        self._seconds = 0.0
        """That the window has had before `_since`: pauses do not count, passes may be shorter than a window."""
        self._since: float | None = None
        self._changes: deque[str] = deque(maxlen=KEPT_CHANGES)

    def note(self, now: float, reading: HopState | None, decoding: HopState | None) -> None:
        """What readers and workers do from now on."""
        self._read.update(now, reading)
        self._decode.update(now, decoding)

    def pause(self, now: float) -> None:
        """No epoch is under way: the window goes on with the next one."""
        if self._since is not None:
            self._seconds += now - self._since
            self._since = None

    def look(self, now: float) -> None:
        """Once in LOOK_S, see whether something should be turned, and turn it."""
        if self._since is None:
            self._since = now
        seconds = self._seconds + now - self._since
        settled, before = self._dispatch.settled, self._before
        if settled and before is not None and seconds < LOOK_S:
            return
        stats = self._before = self.stats(now)
        self._seconds, self._since = 0.0, now
        if not settled or before is None:
            return
        change = self._controller.look(_window(seconds, before, stats), self.knobs)
        if change is not None:
            self._apply(change)

    def _apply(self, change: KnobChange) -> None:
        log.info("%s", change)
        self._changes.append(str(change))
        self.knobs = self.knobs.turned(change)
        match change.name:
            case "readers":
                self._readers.resize(int(change.new))
                self._residency.in_flight = int(change.new)
            case "workers":
                self._dispatch.add_workers(int(change.new - change.old))
            case "task_s":
                self._dispatch.task_s = change.new

    def stats(self, now: float) -> EngineStats:
        """Everything there is to know at this moment."""
        return EngineStats(
            read=self._read.hop(now),
            decode=self._decode.hop(now),
            waited_s=self._shelf.waited_s(now),
            decoding_s=self._dispatch.busy_s,
            reads=self.reads,
            bytes_read=self.bytes_read,
            rereads=self._residency.rereads,
            tasks=self._dispatch.tasks,
            samples=self.samples,
            batches=self.batches,
            worker_deaths=self._dispatch.deaths,
            readers=self.knobs.readers.now,
            workers=self.knobs.workers.now,
            lookahead=self.knobs.look_ahead.now,
            task_s=self.knobs.task_s,
            arena_used_bytes=self._residency.used_bytes,
            ready_batches=len(self._shelf),
            changes=tuple(self._changes),
        )


def _window(seconds: float, before: EngineStats, after: EngineStats) -> TuningWindow:
    return TuningWindow(
        seconds=seconds,
        waited_s=after.waited_s - before.waited_s,
        bytes_read=after.bytes_read - before.bytes_read,
        read=after.read.since(before.read),
        decode=after.decode.since(before.decode),
        decoding_s=after.decoding_s - before.decoding_s,
        tasks=after.tasks - before.tasks,
        samples=after.samples - before.samples,
    )

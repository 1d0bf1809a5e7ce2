"""Changes the engine's knobs while it runs, according to what the hops did since the last decision.

`AutotunePolicy` decides; it has no threads and no clock. `Autotuner` measures, and applies the decisions. At most one
knob is changed at a time, so that its effect shows in the next window. A knob whose low and high are equal was set by
the user, or has no other value; it is never changed.
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

log = logging.getLogger("penstock")

WINDOW_S = 1.0
"""Seconds between two decisions: many batches of a fast loader, and soon enough for a slow one."""
MAX_CHANGES = 100
"""Changes that are kept for `stats`."""
TOLERATED_WAIT = 0.02
"""The fraction of time the training loop may wait; below it, no change is worth while."""
SATURATED = 0.85
"""A hop that is busy for more than this fraction of its time is the bottleneck."""
STARVED = 0.10
"""Workers that starve for more than this fraction of their time are waiting for reading."""
HELD_UP = 0.04
"""Workers that are blocked for more than this fraction, while the training loop waits, need more open batches."""
FASTER = 1.05
"""More reads in flight must increase the read rate by this factor; otherwise the change is undone."""
HELPED = 1.03
"""More lookahead must increase the samples per second by this factor; otherwise it is not increased again for a
while."""
NO_SLOWER = 0.97
"""If fewer reads in flight keep this fraction of the read rate, they stay fewer: seeks and servers are spared."""
IPC_SHARE = 0.10
"""If more than this fraction of a worker's time goes into waiting for the next task, tasks are too small."""
MAX_TASK_S = 0.064
"""Seconds of work in a task, at most."""
REST = 60
"""Windows until a knob that did not help is tried again: the storage may have become better or worse."""
LOOKAHEAD_REST = 2
"""Windows between two increases of the lookahead: in the first one, the memory of the new batches is created."""


@dataclass(frozen=True, slots=True)
class Knob:
    """A number that may be changed within a range."""

    value: int
    low: int
    high: int

    def __post_init__(self) -> None:
        assert self.low <= self.value <= self.high, self

    def clamp(self, value: int) -> int:
        """Return the nearest value within the range."""
        return max(self.low, min(self.high, value))


@dataclass(frozen=True, slots=True)
class Knobs:
    """All settings that the autotuner may change."""

    readers: Knob
    """Reads in flight."""
    workers: Knob
    lookahead: Knob
    """Batches being made or ready, ahead of the one the training loop has."""
    task_s: float
    """Seconds of work in one task."""

    def changed(self, change: KnobChange) -> Knobs:
        """Return the knobs after a change."""
        new = int(change.new)
        match change.name:
            case "readers":
                return replace(self, readers=replace(self.readers, value=new))
            case "workers":
                return replace(self, workers=replace(self.workers, value=new))
            case "lookahead":
                return replace(self, lookahead=replace(self.lookahead, value=new))
        return replace(self, task_s=change.new)


@dataclass(frozen=True, slots=True)
class TuningWindow:
    """The measurements between two decisions."""

    seconds: float
    waited_s: float
    """Seconds the training loop waited for a batch."""
    bytes_read: int
    read: Hop
    decode: Hop
    decoding_s: float
    """Busy time measured by the workers. The rest of the hop's busy time went into sending tasks and results."""
    tasks: int
    samples: int

    @property
    def waited(self) -> float:
        """Fraction of the time in which the training loop waited."""
        return self.waited_s / self.seconds

    @property
    def mb_per_s(self) -> float:
        """Read rate."""
        return self.bytes_read / self.seconds / 1e6


@dataclass(frozen=True, slots=True)
class KnobChange:
    """A new value for one knob."""

    name: str
    old: float
    new: float
    reason: str

    def __str__(self) -> str:
        return f"{self.name} {self.old:g} → {self.new:g}: {self.reason}"


@dataclass(slots=True)
class _ReaderTrial:
    """A change of the readers whose effect is not known yet."""

    old: int
    mb_per_s: float
    """Read rate before the change."""


class AutotunePolicy:
    """Decides on changes. Its only state is what it has tried so far."""

    def __init__(self) -> None:
        self._trial: _ReaderTrial | None = None
        self._rate_before_growth: float | None = None
        """Samples per second before the lookahead was increased, until the effect can be judged."""
        self._rate_to_beat: float | None = None
        """The same value in the window that judges it; not used later, since rates change for other reasons."""
        self._resting: dict[str, int] = {}
        """Windows until a knob may be changed again, by its name."""

    def decide(self, window: TuningWindow, knobs: Knobs) -> KnobChange | None:
        """Return a change, if one is worth while."""
        self._resting = {name: left - 1 for name, left in self._resting.items() if left > 1}
        if "lookahead" not in self._resting:
            self._rate_to_beat, self._rate_before_growth = self._rate_before_growth, None
        if self._trial is not None:
            return self._judge(self._trial, window, knobs.readers)
        if window.waited < TOLERATED_WAIT:
            return None
        rules: tuple[Callable[[TuningWindow, Knobs], KnobChange | None], ...] = (
            _larger_tasks,
            self._more_readers,
            _more_workers,
            self._more_lookahead,
        )
        return next((change for rule in rules if (change := rule(window, knobs)) is not None), None)

    def _more_readers(self, window: TuningWindow, knobs: Knobs) -> KnobChange | None:
        """If reading is the bottleneck, try twice as many reads in flight."""
        knob = knobs.readers
        if not _reading_limits(window) or "readers" in self._resting:
            return None
        new = knob.clamp(2 * knob.value)
        if new == knob.value:
            return None
        self._trial = _ReaderTrial(knob.value, window.mb_per_s)
        return KnobChange(
            "readers",
            knob.value,
            new,
            f"workers starved {window.decode.starved:.0%} of the time with every read in flight; "
            f"trying for more than {window.mb_per_s:.0f} MB/s",
        )

    def _judge(self, trial: _ReaderTrial, window: TuningWindow, knob: Knob) -> KnobChange | None:
        """Keep a number of readers that helped. If more did not help, try fewer once, then rest."""
        self._trial = None
        before, after = trial.mb_per_s, window.mb_per_s
        if knob.value > trial.old:
            if after >= FASTER * before:
                return None
            fewer = knob.clamp(trial.old // 2)
            if fewer < trial.old and _reading_limits(window):
                self._trial = _ReaderTrial(trial.old, max(before, after))
                return KnobChange("readers", knob.value, fewer, f"{after:.0f} MB/s after {before:.0f}: trying fewer")
            self._resting["readers"] = REST
            return KnobChange("readers", knob.value, trial.old, f"{after:.0f} MB/s after {before:.0f}: more is no help")
        fewer = knob.clamp(knob.value // 2)
        if after >= FASTER * before and fewer < knob.value:
            self._trial = _ReaderTrial(knob.value, after)
            return KnobChange("readers", knob.value, fewer, f"{after:.0f} MB/s after {before:.0f}: fewer are better")
        self._resting["readers"] = REST
        if after >= NO_SLOWER * before:
            return None
        return KnobChange("readers", knob.value, trial.old, f"{after:.0f} MB/s after {before:.0f}: fewer are too few")

    def _more_lookahead(self, window: TuningWindow, knobs: Knobs) -> KnobChange | None:
        """If workers are blocked while the training loop waits, increase the lookahead as long as that helps.

        Then batches wait for single samples, or for the tasks that all workers have already.
        """
        knob = knobs.lookahead
        if knob.value == knob.high or window.decode.blocked <= HELD_UP or "lookahead" in self._resting:
            return None
        rate = window.samples / window.seconds
        if self._rate_to_beat is not None and rate < HELPED * self._rate_to_beat:
            self._resting["lookahead"] = REST
            return None
        self._rate_before_growth, self._resting["lookahead"] = rate, LOOKAHEAD_REST
        return KnobChange(
            "lookahead",
            knob.value,
            knob.clamp(knob.value + max(1, knob.value // 2)),
            f"workers waited {window.decode.blocked:.0%} of the time for a batch to be taken "
            f"while the training loop waited {window.waited:.0%} for one to be complete",
        )


def _reading_limits(window: TuningWindow) -> bool:
    return window.read.busy > SATURATED and window.decode.starved > STARVED


def _more_workers(window: TuningWindow, knobs: Knobs) -> KnobChange | None:
    """If decoding is the bottleneck, use twice the workers, up to the number of cores; idle ones would take no CPU."""
    knob = knobs.workers
    new = knob.clamp(2 * knob.value)
    if window.decode.busy <= SATURATED or new == knob.value:
        return None
    return KnobChange(
        "workers",
        knob.value,
        new,
        f"they were busy {window.decode.busy:.0%} of the time while the training loop waited {window.waited:.0%}",
    )


def _larger_tasks(window: TuningWindow, knobs: Knobs) -> KnobChange | None:
    """If workers wait between tasks although there is work, sending tasks costs too much: send more at a time."""
    lost_s = window.decode.busy_s - window.decoding_s
    if window.tasks < 50 or lost_s < IPC_SHARE * window.decode.busy_s or knobs.task_s >= MAX_TASK_S:
        return None
    share = lost_s / window.decode.busy_s
    return KnobChange(
        "task_s", knobs.task_s, min(MAX_TASK_S, 2 * knobs.task_s), f"{share:.0%} went into sending tasks and results"
    )


class Autotuner:
    """Measures the hops and applies the decisions. The scheduler's thread owns it; any thread may call `stats`."""

    def __init__(
        self, block_cache: BlockCache, readers: Readers, dispatch: Dispatch, output_queue: OutputQueue, knobs: Knobs
    ) -> None:
        self.knobs = knobs
        self.batches = self.samples = self.reads = self.bytes_read = 0
        """Counts since the start of the engine, updated by the scheduler."""
        self._block_cache = block_cache
        self._readers = readers
        self._dispatch = dispatch
        self._output_queue = output_queue
        self._policy = AutotunePolicy()
        self._read = HopMeter("read")
        self._decode = HopMeter("decode")
        self._window_start: EngineStats | None = None
        """The counters when the window began."""
        self._window_s = 0.0
        """Length of the window before `_since`: pauses do not count, and an epoch may be shorter than a window."""
        self._since: float | None = None
        """When the window began or was continued; None during a pause."""
        self._changes: deque[str] = deque(maxlen=MAX_CHANGES)

    def update(self, now: float, reading: HopState | None, decoding: HopState | None) -> None:
        """Note what readers and workers do from now on."""
        self._read.update(now, reading)
        self._decode.update(now, decoding)

    def pause(self, now: float) -> None:
        """Note that no epoch is in progress: the window continues with the next one."""
        if self._since is not None:
            self._window_s += now - self._since
            self._since = None

    def tune(self, now: float) -> None:
        """Once in WINDOW_S, decide on a change and apply it."""
        if self._since is None:
            self._since = now
        seconds = self._window_s + now - self._since
        settled, before = self._dispatch.settled, self._window_start
        if settled and before is not None and seconds < WINDOW_S:
            return
        stats = self._window_start = self.stats(now)
        self._window_s, self._since = 0.0, now
        if not settled or before is None:
            return
        change = self._policy.decide(_window(seconds, before, stats), self.knobs)
        if change is not None:
            self._apply(change)

    def _apply(self, change: KnobChange) -> None:
        log.info("%s", change)
        self._changes.append(str(change))
        self.knobs = self.knobs.changed(change)
        match change.name:
            case "readers":
                self._readers.resize(int(change.new))
                self._block_cache.max_reads = int(change.new)
            case "workers":
                self._dispatch.add_workers(int(change.new - change.old))
            case "task_s":
                self._dispatch.task_s = change.new

    def stats(self, now: float) -> EngineStats:
        """Return all counters and knobs at this moment."""
        return EngineStats(
            read=self._read.hop(now),
            decode=self._decode.hop(now),
            waited_s=self._output_queue.waited_s(now),
            decoding_s=self._dispatch.busy_s,
            reads=self.reads,
            bytes_read=self.bytes_read,
            rereads=self._block_cache.rereads,
            tasks=self._dispatch.tasks,
            samples=self.samples,
            batches=self.batches,
            worker_deaths=self._dispatch.deaths,
            readers=self.knobs.readers.value,
            workers=self.knobs.workers.value,
            lookahead=self.knobs.lookahead.value,
            task_s=self.knobs.task_s,
            arena_used_bytes=self._block_cache.used_bytes,
            ready_batches=len(self._output_queue),
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

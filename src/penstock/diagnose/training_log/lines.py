"""What a training log can say: one class per kind of line, and all of them together.

Times of day (`at_s`) are seconds on the log's own clock: only their differences mean something. What a log does not
say is None.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowBatch:
    """One batch that the log calls slow."""

    number: int
    seconds: float
    """Waited for it."""
    label: str = ""
    """What the log's author called the reason: a name, not a measurement."""
    at_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Statistics of the waits for the last so many batches."""

    batches: int
    mean_s: float
    min_s: float
    max_s: float
    std_s: float
    at_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A progress bar as it stood at one moment."""

    done: int
    total: int
    elapsed_s: float
    """Since its first step, by its own clock, to the second."""
    wait_s: float | None = None
    """Per step, as its postfix says; over how many steps is not known."""
    phases: tuple[tuple[str, float], ...] = ()
    """Seconds by name: the parts of the step after the wait."""
    own_s: float | None = None
    """The step without the wait, where the postfix gives it as a sum."""
    at_s: float | None = None

    @property
    def step_s(self) -> float | None:
        """The loop's own time per step: its phases if they are named, else the sum."""
        return sum(seconds for _, seconds in self.phases) if self.phases else self.own_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """Step time and data time, as a mean over the last steps or of one step alone."""

    step: int
    epoch: int | None = None
    total: int | None = None
    """Steps per epoch."""
    time_s: float | None = None
    """The whole step, waiting included."""
    wait_s: float | None = None
    running_time_s: float | None = None
    """Mean since the epoch began, this step included."""
    running_wait_s: float | None = None
    samples: int | None = None
    """Per step, over all ranks."""
    at_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What a log says about the whole run, or how far it is in epochs."""

    epoch: float | None = None
    seconds: float | None = None
    steps_per_s: float | None = None
    samples_per_s: float | None = None
    at_s: float | None = None


Said = SlowBatch | Window | Bar | Meter | Totals


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainLog:
    """All that was recognised in one log, each kind in the order of the file."""

    slow: tuple[SlowBatch, ...] = ()
    windows: tuple[Window, ...] = ()
    bars: tuple[Bar, ...] = ()
    meters: tuple[Meter, ...] = ()
    totals: tuple[Totals, ...] = ()
    workers: tuple[int, ...] = ()
    """Every value of num_workers that the log names, the first first: it may have been changed on the way."""
    prefetch_factors: tuple[int, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    lines: int = 0
    recognised: dict[str, int] = field(default_factory=dict)
    """Lines by format."""
    notes: tuple[str, ...] = ()
    """What was left out, and why."""

    @property
    def steps_per_epoch(self) -> int | None:
        """The total that most bars and meters count up to."""
        totals = Counter(bar.total for bar in self.bars)
        totals.update(meter.total for meter in self.meters if meter.total is not None)
        return totals.most_common(1)[0][0] if totals else None

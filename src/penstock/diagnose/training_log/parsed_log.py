"""The parsed content of a training log: one class per kind of line, and `TrainingLog` for the whole file.

Timestamps (`at_s`) are seconds on the log's own clock: only their differences are meaningful. A value that the log does
not give is None.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from statistics import median


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowBatch:
    """A line that reports one slow batch."""

    number: int
    """Batch number, as the log counts."""
    seconds: float
    """Seconds that the training loop waited for the batch."""
    label: str = ""
    """Reason that the log's author printed. It is a name, not a measurement."""
    at_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitStatistics:
    """A line with statistics of the waits for the most recent batches."""

    batches: int
    """Number of batches that the statistics cover."""
    mean_s: float
    min_s: float
    max_s: float
    std_s: float
    at_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressBar:
    """A progress bar at one moment."""

    done: int
    """Steps done."""
    total: int
    """Steps that the bar counts up to."""
    elapsed_s: float
    """Seconds since the bar's first step, by its own clock, which shows whole seconds."""
    wait_s: float | None = None
    """Seconds of data wait per step, from the postfix. The log does not say over how many steps it is averaged."""
    phases: tuple[tuple[str, float], ...] = ()
    """(name, seconds) of each part of the step after the wait."""
    compute_s: float | None = None
    """Seconds of the step without the wait, where the postfix gives them as one number."""
    at_s: float | None = None

    @property
    def step_without_wait_s(self) -> float | None:
        """Return the seconds of a step without the wait: the sum of its phases if they are named."""
        return sum(seconds for _, seconds in self.phases) if self.phases else self.compute_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMeter:
    """A line with step time and data time, of one step or as a mean over recent steps."""

    step: int
    epoch: int | None = None
    total: int | None = None
    """Steps per epoch."""
    time_s: float | None = None
    """Seconds of the whole step, including the wait."""
    wait_s: float | None = None
    """Seconds of data wait per step."""
    running_time_s: float | None = None
    """Mean seconds of a step since the epoch began, including this step."""
    running_wait_s: float | None = None
    """Mean seconds of data wait since the epoch began, including this step."""
    samples: int | None = None
    """Samples per step, over all ranks."""
    at_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A line about the run as a whole: its epoch so far, or its totals at the end."""

    epoch: float | None = None
    seconds: float | None = None
    """Duration of the run."""
    steps_per_s: float | None = None
    samples_per_s: float | None = None
    at_s: float | None = None


ParsedLine = SlowBatch | WaitStatistics | ProgressBar | StepMeter | RunSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLog:
    """All lines that were recognised in one log, each kind in the order of the file."""

    slow: tuple[SlowBatch, ...] = ()
    statistics: tuple[WaitStatistics, ...] = ()
    bars: tuple[ProgressBar, ...] = ()
    meters: tuple[StepMeter, ...] = ()
    summaries: tuple[RunSummary, ...] = ()
    workers: tuple[int, ...] = ()
    """Every distinct value of num_workers in the log, in order: the setting may have changed during the log."""
    prefetch_factors: tuple[int, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    lines: int = 0
    """Number of lines that are not blank."""
    recognised: dict[str, int] = field(default_factory=dict)
    """Number of recognised lines by format."""
    notes: tuple[str, ...] = ()
    """What was left out, and why."""

    @property
    def steps_per_epoch(self) -> int | None:
        """Return the total that most bars and meters count up to."""
        totals = Counter(bar.total for bar in self.bars)
        totals.update(meter.total for meter in self.meters if meter.total is not None)
        return totals.most_common(1)[0][0] if totals else None

    @property
    def step_without_wait_s(self) -> float | None:
        """Return the median seconds of a step without the wait, from phases, else from bars, else from meters."""
        steps = [bar.step_without_wait_s for bar in self.bars if bar.phases and bar.step_without_wait_s is not None]
        steps = steps or [bar.compute_s for bar in self.bars if bar.compute_s is not None]
        steps = steps or [
            meter.time_s - meter.wait_s
            for meter in self.meters
            if meter.time_s is not None and meter.wait_s is not None and meter.time_s >= meter.wait_s
        ]
        return median(steps) if steps else None

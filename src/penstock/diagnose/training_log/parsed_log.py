"""The parsed content of a training log: one class per kind of line, `TrainingLog` for the whole file, and its settings.

Timestamps (`at_s`) are seconds on the log's own clock: only their differences are meaningful. A value that the log does
not give is None.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from statistics import median

from penstock.errors import SettingError


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
        """Seconds of a step without the wait: the sum of its phases if they are named."""
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
    """Sentences about lines that were left out, and why."""

    @property
    def steps_per_epoch(self) -> int | None:
        """The total that most bars and meters count up to."""
        totals = Counter(bar.total for bar in self.bars)
        totals.update(meter.total for meter in self.meters if meter.total is not None)
        return totals.most_common(1)[0][0] if totals else None

    @property
    def step_without_wait_s(self) -> float | None:
        """Median seconds of a step without the wait, from phases, else from bars, else from meters."""
        steps = [bar.step_without_wait_s for bar in self.bars if bar.phases and bar.step_without_wait_s is not None]
        steps = steps or [bar.compute_s for bar in self.bars if bar.compute_s is not None]
        steps = steps or [
            meter.time_s - meter.wait_s
            for meter in self.meters
            if meter.time_s is not None and meter.wait_s is not None and meter.time_s >= meter.wait_s
        ]
        return median(steps) if steps else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The settings that the diagnosis of a log uses."""

    workers: tuple[int, ...]
    """num_workers; several values where the log names several, because it does not say which one applied when."""
    prefetch_factor: int | None
    batch_size: int | None
    notes: tuple[str, ...]
    """Settings for which the log names several values."""


def resolve_settings(log: TrainingLog, workers: int | None, batch_size: int | None) -> LogSettings:
    """Return the user's values if given, else those of the log; the log's value counts only if it is the only one."""
    if workers is not None and workers < 0:
        raise SettingError(f"{workers} workers are impossible", advice="Give the num_workers of the run, 0 or more")
    if batch_size is not None and batch_size < 1:
        raise SettingError(
            f"a batch of {batch_size} samples is impossible", advice="Give the run's batch size, 1 or more"
        )
    named = {
        "num_workers": log.workers if workers is None else (),
        "prefetch_factor": log.prefetch_factors,
        "batch_size": log.batch_sizes if batch_size is None else (),
    }
    return LogSettings(
        workers=log.workers if workers is None else (workers,),
        prefetch_factor=log.prefetch_factors[0] if len(log.prefetch_factors) == 1 else None,
        batch_size=batch_size or _batch_size(log),
        notes=tuple(
            f"the log names more than one {name} ({', '.join(map(str, values))}): the setting may have changed during "
            "the log, or the values belong to different loaders"
            for name, values in named.items()
            if len(values) > 1
        ),
    )


def _batch_size(log: TrainingLog) -> int | None:
    if log.batch_sizes:
        return log.batch_sizes[0] if len(log.batch_sizes) == 1 else None
    samples = Counter(meter.samples for meter in log.meters if meter.samples is not None)
    return samples.most_common(1)[0][0] if samples else None

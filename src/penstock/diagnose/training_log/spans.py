"""Sums of step time and data time over consecutive steps, from the means of any log format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

from penstock.diagnose.training_log.parsed_log import ProgressBar, StepMeter, TrainingLog

ROUNDING_ERROR_S = 0.0005
"""Running means are printed to the millisecond, so a sum derived from one is off by up to this per step."""
MIN_ROUNDING_ERRORS = 20
"""A span must take at least this multiple of its possible rounding error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSpan:
    """Some consecutive steps."""

    step: int
    """Number of its last step, as the log counts."""
    batches: int
    time_s: float
    """Seconds of all its steps, including the waits."""
    wait_s: float
    """Seconds of data wait in all its steps."""
    first: bool = False
    """Whether it begins an epoch, and so includes the start of the workers."""


def find_spans(log: TrainingLog) -> tuple[LogSpan, ...]:
    """Return the spans between the log's meters, or between its progress bars if no meter names the wait."""
    if any(meter.running_wait_s is not None for meter in log.meters):
        return tuple(_spans_of_running_means(log.meters))
    means = list(_means_of_meters(log.meters)) or list(_means_of_bars(log.bars))
    return tuple(_spans_of_means(means))


@dataclass(frozen=True, slots=True)
class _SumsOfEpoch:
    """Sums since an epoch began."""

    epoch: int | None
    batches: int
    time_s: float
    wait_s: float


def _spans_of_running_means(meters: Sequence[StepMeter]) -> Iterator[LogSpan]:
    """Yield the differences of the sums that the running means stand for; steps count from 0.

    A span that is too short for the rounding is joined with the next one.
    """
    sums = [
        _SumsOfEpoch(
            meter.epoch,
            meter.step + 1,
            (meter.step + 1) * meter.running_time_s,
            (meter.step + 1) * meter.running_wait_s,
        )
        for meter in meters
        if meter.running_time_s is not None and meter.running_wait_s is not None
    ]
    base = _SumsOfEpoch(None, 0, 0.0, 0.0)
    for current, following in zip_longest(sums, sums[1:]):
        epoch_ends = following is None or following.epoch != current.epoch or following.batches < current.batches
        too_short = current.time_s - base.time_s < MIN_ROUNDING_ERRORS * ROUNDING_ERROR_S * current.batches
        if current.batches > base.batches and (epoch_ends or not too_short):
            yield LogSpan(
                step=current.batches - 1,
                batches=current.batches - base.batches,
                time_s=max(0.0, current.time_s - base.time_s),  # sums only grow: below 0 by rounding alone
                wait_s=max(0.0, current.wait_s - base.wait_s),
                first=base.batches == 0,
            )
            base = current
        if epoch_ends:
            base = _SumsOfEpoch(None, 0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class _Means:
    """Mean seconds per step since the previous line, and the step they were printed at."""

    epoch: int | None
    step: int
    time_s: float
    wait_s: float


def _means_of_meters(meters: Sequence[StepMeter]) -> Iterator[_Means]:
    for meter in meters:
        if meter.time_s is not None and meter.wait_s is not None:
            yield _Means(meter.epoch, meter.step, meter.time_s, meter.wait_s)


def _means_of_bars(bars: Sequence[ProgressBar]) -> Iterator[_Means]:
    for bar in bars:
        if bar.wait_s is not None and bar.step_without_wait_s is not None and bar.done:
            yield _Means(None, bar.done, bar.wait_s + bar.step_without_wait_s, bar.wait_s)


def _spans_of_means(means: Sequence[_Means]) -> Iterator[LogSpan]:
    """Yield a span for each mean: the steps since the one before, or the usual number of steps for an epoch's first."""
    gaps = Counter(b.step - a.step for a, b in pairwise(means) if a.epoch == b.epoch and b.step > a.step)
    usual_gap = gaps.most_common(1)[0][0] if gaps else 1
    before: _Means | None = None
    for mean in means:
        if before is not None and (mean.epoch, mean.step) == (before.epoch, before.step):
            continue
        first = before is None or mean.epoch != before.epoch or mean.step < before.step
        batches = usual_gap if before is None or first else mean.step - before.step
        yield LogSpan(
            step=mean.step, batches=batches, time_s=batches * mean.time_s, wait_s=batches * mean.wait_s, first=first
        )
        before = mean

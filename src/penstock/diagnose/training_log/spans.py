"""Stretches of a log with their sums of step time and data time, however the log writes its means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

from penstock.diagnose.training_log.parsed_log import ProgressBar, StepMeter, TrainingLog

_ROUNDING_S = 0.0005
"""Running means are printed to the millisecond: their sums are off by this per step."""
_ROUNDINGS = 20
"""A stretch must take so many times what rounding may be off by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSpan:
    """Some steps in a row."""

    step: int
    """Its last step, as the log counts."""
    batches: int
    time_s: float
    """All steps, waiting included."""
    wait_s: float
    first: bool = False
    """It begins with an epoch, and so with the start of the workers."""


def spans(log: TrainingLog) -> tuple[LogSpan, ...]:
    """From meters where there are any, else from bars that name the wait."""
    if any(meter.running_wait_s is not None for meter in log.meters):
        return tuple(_from_running(log.meters))
    rows = list(_of_meters(log.meters)) or list(_of_bars(log.bars))
    return tuple(_from_means(rows))


def _from_running(meters: Sequence[StepMeter]) -> Iterator[LogSpan]:
    """Differences of sums; steps count from 0. A stretch too short for the rounding is joined with the next."""
    sums = [
        _Sums(
            meter.epoch,
            meter.step + 1,
            (meter.step + 1) * meter.running_time_s,
            (meter.step + 1) * meter.running_wait_s,
        )
        for meter in meters
        if meter.running_time_s is not None and meter.running_wait_s is not None
    ]
    base = _Sums(None, 0, 0.0, 0.0)
    for here, following in zip_longest(sums, sums[1:]):
        ends = following is None or following.epoch != here.epoch or following.batches < here.batches
        short = here.time_s - base.time_s < _ROUNDINGS * _ROUNDING_S * here.batches
        if here.batches > base.batches and (ends or not short):
            yield LogSpan(
                step=here.batches - 1,
                batches=here.batches - base.batches,
                time_s=max(0.0, here.time_s - base.time_s),  # sums cannot fall: below 0 by rounding only
                wait_s=max(0.0, here.wait_s - base.wait_s),
                first=base.batches == 0,
            )
            base = here
        if ends:
            base = _Sums(None, 0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class _Sums:
    """Since an epoch began."""

    epoch: int | None
    batches: int
    time_s: float
    wait_s: float


@dataclass(frozen=True, slots=True)
class _Row:
    """A mean per step, at a step."""

    epoch: int | None
    step: int
    time_s: float
    wait_s: float


def _of_meters(meters: Sequence[StepMeter]) -> Iterator[_Row]:
    for meter in meters:
        if meter.time_s is not None and meter.wait_s is not None:
            yield _Row(meter.epoch, meter.step, meter.time_s, meter.wait_s)


def _of_bars(bars: Sequence[ProgressBar]) -> Iterator[_Row]:
    for bar in bars:
        if bar.wait_s is not None and bar.step_without_wait_s is not None and bar.done:
            yield _Row(None, bar.done, bar.wait_s + bar.step_without_wait_s, bar.wait_s)


def _from_means(rows: Sequence[_Row]) -> Iterator[LogSpan]:
    """Each mean stands for the steps since the one before; the first of an epoch for as many as is usual."""
    gaps = Counter(b.step - a.step for a, b in pairwise(rows) if a.epoch == b.epoch and b.step > a.step)
    usual = gaps.most_common(1)[0][0] if gaps else 1
    before: _Row | None = None
    for row in rows:
        if before is not None and (row.epoch, row.step) == (before.epoch, before.step):
            continue
        first = before is None or row.epoch != before.epoch or row.step < before.step
        batches = usual if before is None or first else row.step - before.step
        yield LogSpan(
            step=row.step, batches=batches, time_s=batches * row.time_s, wait_s=batches * row.wait_s, first=first
        )
        before = row

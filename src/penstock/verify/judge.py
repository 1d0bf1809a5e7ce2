"""Runs before and runs after: is it faster, by how much, and how far off was the prediction.

The interval has two sources. Within a run, blocks of whole rounds of the workers are drawn anew (a bootstrap). Between
runs of the same settings, what their blocks do not explain of the spread is added, as Student's t with as many degrees
of freedom as there are runs to spare. Drawing two runs anew out of two would pass for a bootstrap over runs, but knows
too few of them: in simulations where runs differ by far more than their blocks it finds a difference that is not there
one time in four. This one does so 2 to 9 times in a hundred with two runs each, and 2 to 5 times with three.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.core.format import format_count
from penstock.core.plan import Plan
from penstock.core.types import Floats
from penstock.errors import RecordingError
from penstock.verify.measures import ENOUGH_BLOCKS, RESAMPLES, Answer, RunMeasure, answer_of, interval

BLOCKS = 30
"""Of a run, at most: blocks must be long against what makes a step like the one before it."""
LEAST_STEPS = 2
EXPLAINED = 0.5
"""Of the spread within runs, what is taken off that between them: with all of it, luck passes for proof more often."""

Runs = Sequence[RunMeasure]
"""Of one setting: samples over seconds, step by step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What may be said. The ratio is after over before; 95% of the resamples lie in low to high."""

    answer: Answer
    before_samples_s: float
    """The runs' geometric mean."""
    after_samples_s: float
    low: float | None
    high: float | None
    """None where the runs are too short for an interval."""
    predicted_gain: float | None
    """Of the plan: 0.5 is half as many samples a second again."""
    notes: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """Samples per second, after over before."""
        return self.after_samples_s / self.before_samples_s

    @property
    def gain(self) -> float:
        """As measured, in the terms of `predicted_gain`."""
        return self.ratio - 1

    @property
    def model_error(self) -> float | None:
        """Predicted over measured rate, less 1: 0.1 is a tenth too hopeful. None where nothing was predicted."""
        return None if self.predicted_gain is None else (1 + self.predicted_gain) / self.ratio - 1


def judge(before: Runs, after: Runs, predicted_gain: float | None = None) -> Judgement:
    """Better or worse only where the whole interval lies on one side of 1."""
    for name, runs in (("before", before), ("after", after)):
        _check(name, runs)
    rates = [np.log([run.value for run in runs]) for runs in (before, after)]
    means = [float(np.exp(logs.mean())) for logs in rates]
    span = _interval(before, after)
    low, high = span or (None, None)
    return Judgement(
        answer="inconclusive" if span is None else answer_of(*span, more_is_better=True),
        before_samples_s=means[0],
        after_samples_s=means[1],
        low=low,
        high=high,
        predicted_gain=predicted_gain,
        notes=tuple(_notes(before, after, known=span is not None)),
    )


def _check(name: str, runs: Runs) -> None:
    if not runs:
        raise RecordingError(f"there is no run {name} to judge")
    for number, run in enumerate(runs, 1):
        which = f"run {number} {name}"
        if len(run.bottom) < LEAST_STEPS:
            steps = format_count(len(run.bottom), "step")
            raise RecordingError(f"{which} has {steps} after its warm-up: no rate can be told", advice="Run it longer")
        if not (np.isfinite(run.top).all() and np.isfinite(run.bottom).all()):
            raise RecordingError(f"{which} has a step whose samples or seconds are no number")
        if (run.bottom < 0).any() or (run.top < 0).any() or run.value <= 0:
            raise RecordingError(f"{which} has steps without time or without samples")


def _interval(before: Runs, after: Runs) -> tuple[float, float] | None:
    dice = np.random.default_rng(0)
    drawn = [[_drawn(run, dice) for run in runs] for runs in (before, after)]
    known = [[logs for logs in runs if logs is not None] for runs in drawn]
    if any(len(kept) < len(runs) for kept, runs in zip(known, drawn, strict=True)):
        return None
    ratios = np.mean(known[1], axis=0) - np.mean(known[0], axis=0)
    spare = len(before) + len(after) - 2
    if spare:
        ratios = ratios + _unexplained(before, after, known, spare) * dice.standard_t(spare, RESAMPLES)
    return interval(np.exp(ratios))


def _drawn(run: RunMeasure, dice: np.random.Generator) -> Floats | None:
    """The log of its rate in each resample."""
    values = run.resampled(dice, BLOCKS)
    return None if values is None or not (values > 0).all() else np.log(values)


def _unexplained(before: Runs, after: Runs, drawn: Sequence[Sequence[Floats]], spare: int) -> float:
    """Standard deviation of the log ratio by what differs from run to run and is not seen within one."""
    rates = [np.log([run.value for run in runs]) for runs in (before, after)]
    between = sum(float(((logs - logs.mean()) ** 2).sum()) for logs in rates) / spare
    within = float(np.mean([np.var(logs) for runs in drawn for logs in runs]))
    return float(np.sqrt(max(0.0, between - EXPLAINED * within) * (1 / len(before) + 1 / len(after))))


def _notes(before: Runs, after: Runs, *, known: bool) -> Iterator[str]:
    if not known:
        rounds = min(len(run.starts(BLOCKS)) for run in (*before, *after))
        yield f"Too short to judge: {rounds} rounds of the workers in the shortest run, {ENOUGH_BLOCKS} are needed."
    if len(before) + len(after) == 2:
        yield "One run each: what differs from run to run with the same settings is not in the interval."


def predicted(plan: Plan) -> tuple[float | None, str | None]:
    """What the plan promises of its DataLoader settings alone, and a note where that cannot be told.

    Its rate counts changes to the step too, which no one makes to an unchanged script.
    """
    of_step = [change for change in plan.changes if change.scope == "step" and change.gain is not None]
    if not of_step:
        if plan.samples_s and plan.planned_samples_s:
            return plan.planned_samples_s / plan.samples_s - 1, None
        return None, "The plan predicts no rate."
    gains = [change.gain for change in plan.changes if change.scope == "dataloader" and change.gain is not None]
    if len(gains) == 1:
        return gains[0], None
    return None, "The plan's rate counts changes to the step, which were not made: there is nothing to compare with."

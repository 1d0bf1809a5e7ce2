"""Judges a change by the runs before and after it: whether it is faster, by how much, and how good the prediction was.

The interval has two sources. Within a run, blocks of whole rounds of the workers are resampled (a bootstrap). Between
runs of the same settings, the part of the spread that their blocks do not explain is added, as Student's t with as many
degrees of freedom as the number of runs leaves. A bootstrap over runs would resample two runs out of two, which are too
few: in simulations where runs differ by far more than their blocks, it finds a difference that does not exist in a
quarter of all cases. This method does so in 2 to 9% of them with two runs each, and in 2 to 5% with three.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.core.format import format_count
from penstock.core.plan import Plan
from penstock.core.types import Floats
from penstock.errors import RecordingError
from penstock.verify.measures import MIN_BLOCKS, RESAMPLES, Answer, RunMeasure, answer_for, percentile_interval

MAX_BLOCKS = 30
"""Blocks of a run at most: a block must be longer than the time over which steps depend on each other."""
MIN_STEPS = 2
EXPLAINED = 0.5
"""Share of the variance within runs that is subtracted from that between them; with all of it, chance is more often
taken for a difference."""

Runs = Sequence[RunMeasure]
"""Runs with the same settings: samples over seconds, step by step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The result of a verification. The ratio is after over before; 95% of the resamples lie from low to high."""

    answer: Answer
    before_samples_s: float
    """Geometric mean of the runs."""
    after_samples_s: float
    low: float | None
    high: float | None
    """Like `low`, None if the runs are too short for an interval."""
    predicted_gain: float | None
    """Gain predicted by the plan: 0.5 means 1.5 times the samples per second."""
    notes: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """Samples per second, after over before."""
        return self.after_samples_s / self.before_samples_s

    @property
    def gain(self) -> float:
        """The measured gain, comparable with `predicted_gain`."""
        return self.ratio - 1

    @property
    def model_error(self) -> float | None:
        """Predicted over measured rate, less 1: 0.1 means 10% too high. None if nothing was predicted."""
        return None if self.predicted_gain is None else (1 + self.predicted_gain) / self.ratio - 1


def judge(before: Runs, after: Runs, predicted_gain: float | None = None) -> Judgement:
    """Judge the runs: better or worse only if the whole interval of the ratio lies on one side of 1."""
    for name, runs in (("before", before), ("after", after)):
        _check(name, runs)
    rates = [np.log([run.value for run in runs]) for runs in (before, after)]
    means = [float(np.exp(logs.mean())) for logs in rates]
    interval = _interval(before, after)
    low, high = interval or (None, None)
    return Judgement(
        answer="inconclusive" if interval is None else answer_for(*interval, more_is_better=True),
        before_samples_s=means[0],
        after_samples_s=means[1],
        low=low,
        high=high,
        predicted_gain=predicted_gain,
        notes=tuple(_notes(before, after, known=interval is not None)),
    )


def _check(name: str, runs: Runs) -> None:
    if not runs:
        raise RecordingError(f"there is no run {name} to judge")
    for number, run in enumerate(runs, 1):
        which = f"run {number} {name}"
        if len(run.denominator) < MIN_STEPS:
            steps = format_count(len(run.denominator), "step")
            raise RecordingError(f"{which} has {steps} after its warm-up: too few for a rate", advice="Run it longer")
        if not (np.isfinite(run.numerator).all() and np.isfinite(run.denominator).all()):
            raise RecordingError(f"{which} has a step whose samples or seconds are not finite")
        if (run.denominator < 0).any() or (run.numerator < 0).any() or run.value <= 0:
            raise RecordingError(f"{which} has steps without time or without samples")


def _interval(before: Runs, after: Runs) -> tuple[float, float] | None:
    rng = np.random.default_rng(0)
    resampled = [[_log_rates(run, rng) for run in runs] for runs in (before, after)]
    known = [[logs for logs in runs if logs is not None] for runs in resampled]
    if any(len(kept) < len(runs) for kept, runs in zip(known, resampled, strict=True)):
        return None
    ratios = np.mean(known[1], axis=0) - np.mean(known[0], axis=0)
    freedom = len(before) + len(after) - 2
    if freedom:
        ratios = ratios + _unexplained(before, after, known, freedom) * rng.standard_t(freedom, RESAMPLES)
    return percentile_interval(np.exp(ratios))


def _log_rates(run: RunMeasure, rng: np.random.Generator) -> Floats | None:
    """Return the log of the rate in each resample; None if the run is too short."""
    values = run.resampled(rng, MAX_BLOCKS)
    return None if values is None or not (values > 0).all() else np.log(values)


def _unexplained(before: Runs, after: Runs, resampled: Sequence[Sequence[Floats]], freedom: int) -> float:
    """Return the standard deviation of the log ratio that differs between runs and is not visible within one."""
    rates = [np.log([run.value for run in runs]) for runs in (before, after)]
    between = sum(float(((logs - logs.mean()) ** 2).sum()) for logs in rates) / freedom
    within = float(np.mean([np.var(logs) for runs in resampled for logs in runs]))
    return float(np.sqrt(max(0.0, between - EXPLAINED * within) * (1 / len(before) + 1 / len(after))))


def _notes(before: Runs, after: Runs, *, known: bool) -> Iterator[str]:
    if not known:
        rounds = min(len(run.block_starts(MAX_BLOCKS)) for run in (*before, *after))
        yield f"Too short to judge: {rounds} rounds of the workers in the shortest run, {MIN_BLOCKS} are needed."
    if len(before) + len(after) == 2:
        yield "One run each: the variation between runs with the same settings is not in the interval."


def predicted_gain(plan: Plan) -> tuple[float | None, str | None]:
    """Return the gain that the plan predicts for its DataLoader settings alone, or a note why it is not known.

    The rate of the plan includes changes to the step, which an unchanged script does not make.
    """
    of_step = [change for change in plan.changes if change.scope == "step" and change.gain is not None]
    if not of_step:
        if plan.samples_s and plan.planned_samples_s:
            return plan.planned_samples_s / plan.samples_s - 1, None
        return None, "The plan predicts no rate."
    gains = [change.gain for change in plan.changes if change.scope == "dataloader" and change.gain is not None]
    if len(gains) == 1:
        return gains[0], None
    return None, "The plan's rate counts changes to the step, which were not made: no prediction can be compared."

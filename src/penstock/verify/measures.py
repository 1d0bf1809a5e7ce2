"""One quantity of two runs, with an interval for its ratio by a bootstrap over blocks of batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.types import Floats
from penstock.diagnose.evidence.evidence import Evidence, gather
from penstock.errors import RecordingError
from penstock.recording.format import LoaderLine
from penstock.recording.reader import Recording

Answer = Literal["better", "worse", "inconclusive"]

MAX_BLOCKS = 100
"""Blocks of a run at most: long blocks keep dependent batches (a round of all workers) together."""
MIN_BLOCKS = 8
"""Blocks of a run below which the answer is always "inconclusive"."""
RESAMPLES = 2000
SAME = 1e-3
"""Distance of a ratio from 1 that is no difference: clocks and rounding cause as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One quantity of both runs. The ratio is b over a; 95% of the bootstrap's ratios lie from low to high."""

    name: str
    unit: str
    """samples/s, batches/s, share, or seconds: s/batch, s/sample."""
    a: float
    b: float
    low: float | None
    high: float | None
    answer: Answer

    @property
    def ratio(self) -> float | None:
        """The ratio; None if the value of a is 0."""
        return self.b / self.a if self.a > 0 else None


@dataclass(frozen=True, slots=True)
class RunMeasure:
    """One quantity of one run: the sum of `numerator` over the sum of `denominator`, which hold one value per batch."""

    numerator: Floats
    denominator: Floats
    workers: int

    @property
    def value(self) -> float:
        """The quotient of the sums; 0 if the denominator is 0."""
        return float(self.numerator.sum() / self.denominator.sum()) if self.denominator.sum() > 0 else 0.0

    def block_starts(self, max_blocks: int = MAX_BLOCKS) -> NDArray[np.int64]:
        """Return the first batch of each block of whole worker rounds; the last block includes the rest of the run."""
        round_size = max(self.workers, 1)
        size = round_size * max(1, -(-len(self.numerator) // (round_size * max_blocks)))
        return np.arange(len(self.numerator) // size, dtype=np.int64) * size

    def resampled(self, rng: np.random.Generator, max_blocks: int = MAX_BLOCKS) -> Floats | None:
        """Return the value in each resample of blocks; None if the run is too short or a denominator is 0."""
        starts = self.block_starts(max_blocks)
        if len(starts) < MIN_BLOCKS:
            return None
        chosen = rng.integers(0, len(starts), (RESAMPLES, len(starts)))
        numerators, denominators = (
            np.add.reduceat(column, starts)[chosen].sum(axis=1) for column in (self.numerator, self.denominator)
        )
        values: Floats | None = numerators / denominators if (denominators > 0).all() else None
        return values


def measure(name: str, unit: str, a: RunMeasure, b: RunMeasure, *, more_is_better: bool = False) -> Measure:
    """Compare a quantity of two runs: better or worse only if the whole interval of the ratio lies on one side of 1."""
    rng = np.random.default_rng(0)
    resampled_a, resampled_b = a.resampled(rng), b.resampled(rng)
    if resampled_a is None or resampled_b is None or not (resampled_a > 0).all():
        return Measure(name=name, unit=unit, a=a.value, b=b.value, low=None, high=None, answer="inconclusive")
    low, high = percentile_interval(resampled_b / resampled_a)
    answer = answer_for(low, high, more_is_better=more_is_better)
    return Measure(name=name, unit=unit, a=a.value, b=b.value, low=low, high=high, answer=answer)


def percentile_interval(ratios: Floats) -> tuple[float, float]:
    """Return the interval in which 95% of the ratios lie."""
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(low), float(high)


def answer_for(low: float, high: float, *, more_is_better: bool) -> Answer:
    """Return the answer for a ratio with this interval."""
    if low > 1 + SAME or high < 1 - SAME:
        return "better" if (low > 1) == more_is_better else "worse"
    return "inconclusive"


def main_loader(recording: Recording, name: str) -> Evidence:
    """Return the loader that took most of the run's time; `name` names the recording in an error."""
    found = [evidence for evidence in gather(recording) if evidence.loop.steps]
    if not found:
        raise RecordingError(f"{name} has no steps to compare", advice="Record at least two batches of an epoch")
    return max(found, key=lambda evidence: evidence.loop.steady_s)


def same_loader(recording: Recording, other: LoaderLine, name: str) -> Evidence:
    """Return the loader with the same name as one of another run; if there is none, the main one."""
    found = [
        evidence
        for evidence in gather(recording)
        if evidence.loop.steps and _identity(evidence.loader) == _identity(other)
    ]
    return found[0] if found else main_loader(recording, name)


def _identity(loader: LoaderLine) -> str | int:
    return loader.name or loader.loader


def batch_samples(run: Evidence) -> Floats:
    """Return the samples of each batch; the mean of the others if one was not counted, NaN if none was."""
    mean = run.loop.samples_per_batch
    return np.array([mean if step.samples is None else step.samples for step in run.loop.steps], float)


def batch_seconds(run: Evidence) -> Floats:
    """Return the seconds from batch to batch: the wait and the loop's own time, without pauses."""
    return run.loop.wait_s + run.loop.busy_s

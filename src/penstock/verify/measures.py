"""One quantity in two runs, with an interval for its ratio: a bootstrap over blocks of batches."""

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

BLOCKS = 100
"""Into which a run is cut at most: long ones keep what hangs together (a round of all workers) in one block."""
ENOUGH_BLOCKS = 8
"""With fewer, nothing is claimed."""
RESAMPLES = 2000
SAME = 1e-3
"""Ratios nearer to 1 are no difference: clocks and rounding make as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One quantity in both runs. The ratio is b over a; 95% of the bootstrap's ratios lie in low to high."""

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
        """None where a has none of it."""
        return self.b / self.a if self.a > 0 else None


@dataclass(frozen=True, slots=True)
class RunMeasure:
    """One run's part of a measure: the sum of `top` over the sum of `bottom`, one value per batch each."""

    top: Floats
    bottom: Floats
    workers: int

    @property
    def value(self) -> float:
        """0 where there is nothing to divide by."""
        return float(self.top.sum() / self.bottom.sum()) if self.bottom.sum() > 0 else 0.0

    def starts(self, most: int = BLOCKS) -> NDArray[np.int64]:
        """Where each block begins: whole rounds of the workers; what is left over at the end is the last block's."""
        round_ = max(self.workers, 1)
        size = round_ * max(1, -(-len(self.top) // (round_ * most)))
        return np.arange(len(self.top) // size, dtype=np.int64) * size

    def resampled(self, dice: np.random.Generator, most: int = BLOCKS) -> Floats | None:
        """The value in each resample of blocks; None where that cannot be: too short, or nothing to divide by."""
        starts = self.starts(most)
        if len(starts) < ENOUGH_BLOCKS:
            return None
        picked = dice.integers(0, len(starts), (RESAMPLES, len(starts)))
        tops, bottoms = (np.add.reduceat(column, starts)[picked].sum(axis=1) for column in (self.top, self.bottom))
        values: Floats | None = tops / bottoms if (bottoms > 0).all() else None
        return values


def measure(name: str, unit: str, a: RunMeasure, b: RunMeasure, *, more_is_better: bool = False) -> Measure:
    """Better or worse only where the whole interval of the ratio lies on one side of 1."""
    dice = np.random.default_rng(0)
    drawn_a, drawn_b = a.resampled(dice), b.resampled(dice)
    if drawn_a is None or drawn_b is None or not (drawn_a > 0).all():
        return Measure(name=name, unit=unit, a=a.value, b=b.value, low=None, high=None, answer="inconclusive")
    low, high = interval(drawn_b / drawn_a)
    answer = answer_of(low, high, more_is_better=more_is_better)
    return Measure(name=name, unit=unit, a=a.value, b=b.value, low=low, high=high, answer=answer)


def interval(ratios: Floats) -> tuple[float, float]:
    """In which 95% of them lie."""
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(low), float(high)


def answer_of(low: float, high: float, *, more_is_better: bool) -> Answer:
    """What may be said of a ratio whose interval this is."""
    if low > 1 + SAME or high < 1 - SAME:
        return "better" if (low > 1) == more_is_better else "worse"
    return "inconclusive"


def main_loader(recording: Recording, which: str) -> Evidence:
    """The loader that took most of the run's time; `which` is what an error calls the recording."""
    found = [evidence for evidence in gather(recording) if evidence.loop.steps]
    if not found:
        raise RecordingError(f"{which} has no steps to compare", advice="Record at least two batches of a pass")
    return max(found, key=lambda evidence: evidence.loop.steady_s)


def namesake(recording: Recording, of: LoaderLine, which: str) -> Evidence:
    """The loader that the script calls the same; where there is none, the main one."""
    found = [
        evidence for evidence in gather(recording) if evidence.loop.steps and _called(evidence.loader) == _called(of)
    ]
    return found[0] if found else main_loader(recording, which)


def _called(loader: LoaderLine) -> str | int:
    return loader.name or loader.loader


def samples(run: Evidence) -> Floats:
    """Per batch; where one was not counted, as many as the others have on average, NaN where none was."""
    usual = run.loop.samples_per_batch
    return np.array([usual if step.samples is None else step.samples for step in run.loop.steps], float)


def cycles(run: Evidence) -> Floats:
    """Seconds from batch to batch: the wait and the loop's own time, pauses left out."""
    return run.loop.wait_s + run.loop.busy_s

"""How long the ranks of a run wait for data, step by step.

Ranks that train together finish every step together: when one rank waits longer for its batch, the others wait for it
in `backward`. So the run as a whole waits, in every step, as long as the rank with the longest wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from penstock.core.finding import RankWait
from penstock.core.types import Bools, Floats
from penstock.diagnose.evidence.evidence import Evidence, gather
from penstock.diagnose.verdict import STEPS_MIN
from penstock.recording.format import StepLine
from penstock.recording.reader import Recording

COST_MIN = 0.05
"""Share of the time that a rank must cost the others to hold them back."""
COST_SHARE_MIN = 2 / 3
"""Share of all delays between the ranks that one rank must cause: with less it is one of several."""

StepKey = tuple[int, str, int, int]
"""(number of the loader, its name, epoch, batch): identifies the same step in the recordings of all ranks."""


@dataclass(frozen=True)
class RankSkew:
    """How late each rank is in every step that all ranks have in common."""

    ranks: tuple[int, ...]
    """The number of the rank in each row."""
    late_s: Floats
    """Seconds: a row per rank, a column per step. The rank with the most seconds is the last one of the step."""
    time_s: float
    """Seconds of these steps, averaged over the ranks."""

    @cached_property
    def alone_s(self) -> Floats:
        """Seconds, for each rank, by which it is later than all others; summed over the steps."""
        second_s, longest_s = np.sort(self.late_s, axis=0)[-2:]
        return np.array([(longest_s - second_s)[self.last(row)].sum() for row in range(len(self.ranks))])

    @cached_property
    def holder(self) -> int | None:
        """The row of the rank that holds the others back; None if no rank does, or several do."""
        row = int(self.alone_s.argmax())
        cost_s = float(self.alone_s[row])
        holds = cost_s >= COST_MIN * self.time_s and cost_s > COST_SHARE_MIN * float(self.alone_s.sum())
        return row if holds and self.time_s > 0 else None

    @property
    def steps(self) -> int:
        """Number of steps that all ranks have in common."""
        return len(self.late_s[0])

    def last(self, row: int) -> Bools:
        """Return the steps in which the rank was the last; in a step in which no rank is late, none is."""
        longest_s = self.late_s.max(axis=0)
        last: Bools = (longest_s > 0) & (self.late_s.argmax(axis=0) == row)
        return last


@dataclass(frozen=True)
class RankWaits(RankSkew):
    """How long each rank waits for its batch beyond the cost of receiving a ready one, without the starts of epochs."""

    startups_s: float
    """Seconds of the longest wait of any rank for the first batch of an epoch, summed over the epochs."""

    @cached_property
    def exposed_s(self) -> float:
        """Seconds of the longest wait of any rank, summed over the steps."""
        return float(self.late_s.max(axis=0).sum())

    def each(self) -> tuple[RankWait, ...]:
        """Return the figures of each rank for the diagnosis."""
        waited_s = self.late_s.sum(axis=1)
        return tuple(
            RankWait(
                rank=rank,
                waited_s=float(waited_s[row]),
                last=float(self.last(row).mean()),
                alone_s=float(self.alone_s[row]),
            )
            for row, rank in enumerate(self.ranks)
        )


def rank_waits(ranks: Sequence[Recording]) -> RankWaits | None:
    """Return the waits; None for a single rank, or if the ranks have too few steps in common."""
    if len(ranks) < 2:
        return None
    loaders = [gather(recording) for recording in ranks]
    steady = [{step_key(each, wait.step): wait for each in evidence for wait in _waits(each)} for evidence in loaders]
    common = sorted(set.intersection(*map(set, steady)))
    if len(common) < STEPS_MIN:
        return None
    first = [
        {step_key(each, step): step.wait_s for each in evidence for step in each.loop.first_steps}
        for evidence in loaders
    ]
    return RankWaits(
        ranks=tuple(recording.run.rank for recording in ranks),
        late_s=np.array([[table[key].beyond_s for key in common] for table in steady]),
        time_s=float(np.mean([sum(table[key].time_s for key in common) for table in steady])),
        startups_s=sum(max(table[key] for table in first) for key in set.intersection(*map(set, first))),
    )


def step_key(evidence: Evidence, step: StepLine) -> StepKey:
    """Return the key by which the same step is found in another rank's recording."""
    return evidence.loader.loader, evidence.loader.name, step.epoch, step.batch


@dataclass(frozen=True, slots=True)
class _StepWait:
    step: StepLine
    beyond_s: float
    """Seconds of waiting beyond the cost of receiving a ready batch."""
    time_s: float
    """Seconds of the whole step."""


def _waits(evidence: Evidence) -> list[_StepWait]:
    loop = evidence.loop
    beyond_s = np.maximum(loop.wait_s - evidence.ipc.receive_s, 0.0).tolist()
    times_s = (loop.wait_s + loop.busy_s).tolist()
    return [_StepWait(*values) for values in zip(loop.steps, beyond_s, times_s, strict=True)]

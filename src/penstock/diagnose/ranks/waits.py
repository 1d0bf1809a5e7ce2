"""How long the ranks of a run waited for data, step by step beside each other.

Ranks that train together leave every step together: what one waits longer for its batch, the others wait for it in
`backward`. So the run as a whole waits, in every step, as long as the last of them does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from penstock.core.finding import RankWait
from penstock.diagnose.evidence.evidence import Evidence, gather
from penstock.diagnose.ranks.rank_skew import RankSkew
from penstock.recording.format import StepLine
from penstock.recording.reader import Recording

ENOUGH_STEPS = 20

Key = tuple[int, str, int, int]
"""A step: number and name of its loader, pass, batch."""


@dataclass(frozen=True)
class RankWaits(RankSkew):
    """For batches, less what handing over a ready one takes; the first of each pass is kept apart."""

    startups_s: float
    """Of each pass's first batch, the longest wait of any rank."""

    @cached_property
    def exposed_s(self) -> float:
        """In every step, the longest wait."""
        return float(self.late_s.max(axis=0).sum())

    def each(self) -> tuple[RankWait, ...]:
        """In numbers to be told."""
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
    """None of a rank alone, or where they have too few steps in common to say anything."""
    if len(ranks) < 2:
        return None
    seen = [gather(recording) for recording in ranks]
    steady = [{step_key(e, at.step): at for e in evidence for at in _timed(e)} for evidence in seen]
    common = sorted(set.intersection(*map(set, steady)))
    if len(common) < ENOUGH_STEPS:
        return None
    firsts = [{step_key(e, step): step.wait_s for e in evidence for step in e.loop.first_steps} for evidence in seen]
    begun = set.intersection(*map(set, firsts))
    return RankWaits(
        ranks=tuple(recording.run.rank for recording in ranks),
        late_s=np.array([[table[key].beyond_s for key in common] for table in steady]),
        time_s=float(np.mean([sum(table[key].time_s for key in common) for table in steady])),
        startups_s=sum(max(table[key] for table in firsts) for key in begun),
    )


def step_key(evidence: Evidence, step: StepLine) -> Key:
    """By which the same step is found in another rank's recording."""
    return evidence.loader.loader, evidence.loader.name, step.epoch, step.batch


@dataclass(frozen=True, slots=True)
class _TimedWaits:
    step: StepLine
    beyond_s: float
    time_s: float


def _timed(evidence: Evidence) -> list[_TimedWaits]:
    beyond_s = np.maximum(evidence.loop.wait_s - evidence.ipc.receive_s, 0.0).tolist()
    times_s = (evidence.loop.wait_s + evidence.loop.busy_s).tolist()
    return [_TimedWaits(*found) for found in zip(evidence.loop.steps, beyond_s, times_s, strict=True)]

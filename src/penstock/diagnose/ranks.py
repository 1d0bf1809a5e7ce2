"""How long the ranks of a run waited for data, step by step beside each other.

Ranks that train together leave every step together: what one waits longer for its batch, the others wait for it in
`backward`. So the run as a whole waits, in every step, as long as the last of them does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from penstock.core.finding import RankWait
from penstock.diagnose.evidence import Evidence, gather
from penstock.recording.lines import Step
from penstock.recording.load import Recording

HOLDS = 0.05
"""Of the time: a rank that costs the others less does not hold them back."""
MOSTLY = 2 / 3
"""Of what all ranks cost each other: a rank that causes less of it is one of several."""
ENOUGH_STEPS = 20

Key = tuple[int, str, int, int]
"""A step: number and name of its loader, pass, batch."""


@dataclass(frozen=True)
class Waits:
    """Of the steps that all ranks had, without the first of each pass: a row for each rank."""

    ranks: tuple[int, ...]
    beyond_s: NDArray[np.float64]
    """Waited for a batch, less what handing over a ready one takes."""
    time_s: float
    """Of these steps, on average over the ranks."""
    startups_s: float
    """Of each pass's first batch, the longest wait of any rank."""

    @cached_property
    def exposed_s(self) -> float:
        """In every step, the longest wait."""
        return float(self.beyond_s.max(axis=0).sum())

    @cached_property
    def alone_s(self) -> NDArray[np.float64]:
        """For each rank, what it waited longer than any other."""
        second_s, longest_s = np.sort(self.beyond_s, axis=0)[-2:]
        return np.array([(longest_s - second_s)[self._last(row)].sum() for row in range(len(self.ranks))])

    @cached_property
    def holder(self) -> int | None:
        """The row of the rank that holds the others back."""
        row = int(self.alone_s.argmax())
        costs_s = float(self.alone_s[row])
        holds = costs_s >= HOLDS * self.time_s and costs_s > MOSTLY * float(self.alone_s.sum())
        return row if holds and self.time_s > 0 else None

    @property
    def steps(self) -> int:
        """How many there are."""
        return len(self.beyond_s[0])

    def each(self) -> tuple[RankWait, ...]:
        """In numbers to be told."""
        waited_s = self.beyond_s.sum(axis=1)
        return tuple(
            RankWait(
                rank=rank,
                waited_s=float(waited_s[row]),
                last=float(self._last(row).mean()),
                alone_s=float(self.alone_s[row]),
            )
            for row, rank in enumerate(self.ranks)
        )

    def _last(self, row: int) -> NDArray[np.bool_]:
        """The steps in which it was the last; where nobody waited, nobody was."""
        longest_s = self.beyond_s.max(axis=0)
        last: NDArray[np.bool_] = (longest_s > 0) & (self.beyond_s.argmax(axis=0) == row)
        return last


def waits_of(ranks: Sequence[Recording]) -> Waits | None:
    """None of a rank alone, or where they have too few steps in common to say anything."""
    if len(ranks) < 2:
        return None
    seen = [gather(recording) for recording in ranks]
    steady = [{_key(e, at.step): at for e in evidence for at in _timed(e)} for evidence in seen]
    common = sorted(set.intersection(*map(set, steady)))
    if len(common) < ENOUGH_STEPS:
        return None
    firsts = [{_key(e, step): step.wait_s for e in evidence for step in e.firsts} for evidence in seen]
    begun = set.intersection(*map(set, firsts))
    return Waits(
        ranks=tuple(recording.run.rank for recording in ranks),
        beyond_s=np.array([[table[key].beyond_s for key in common] for table in steady]),
        time_s=float(np.mean([sum(table[key].time_s for key in common) for table in steady])),
        startups_s=sum(max(table[key] for table in firsts) for key in begun),
    )


@dataclass(frozen=True, slots=True)
class _Timed:
    step: Step
    beyond_s: float
    time_s: float


def _timed(evidence: Evidence) -> list[_Timed]:
    beyond_s = np.maximum(evidence.wait_s - evidence.handover_s, 0.0).tolist()
    times_s = (evidence.wait_s + evidence.busy_s).tolist()
    return [_Timed(*found) for found in zip(evidence.steps, beyond_s, times_s, strict=True)]


def _key(evidence: Evidence, step: Step) -> Key:
    return evidence.loader.loader, evidence.loader.name, step.pass_, step.batch

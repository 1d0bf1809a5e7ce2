"""Who comes last to where ranks meet.

Ranks that train together meet in `backward`, which sums their gradients: who is there first waits for the last. So a
whole step takes all of them equally long, and the slow one is the one whose time *there* is the shortest.

On a GPU the host only hands out work: there the meeting is in `backward` on the device's own clock, where it was read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import numpy as np
from numpy.typing import NDArray

from penstock.diagnose.evidence.evidence import Evidence, gather
from penstock.diagnose.evidence.loop import is_outermost
from penstock.diagnose.ranks.rank_skew import RankSkew
from penstock.diagnose.ranks.waits import ENOUGH_STEPS, Key, step_key
from penstock.recording.format import StepLine
from penstock.recording.reader import Recording

BACKWARD = "backward"
MEETS = (BACKWARD, "sync")
"""On the host: what waits for the others, or for a device that does."""
WAITING, REST = "waiting for data", "what no phase covers"
MIRRORED = 0.5
"""Of what a rank is later, it must be seen to take longer elsewhere: else it only has less to do in `backward`."""
SURE = 3.0
"""Standard errors by which a rank is later than all others, on average over the steps: less may be chance."""


@dataclass(frozen=True)
class CollectiveWaits(RankSkew):
    """Who was later than the first to come, by how much less it stood there."""

    met_s: NDArray[np.float64]
    """For each rank, in `backward`, of a step."""
    parts_s: tuple[Mapping[str, float], ...]
    """For each rank, of a step, outside of it, by phase; waiting for data among them."""
    on_device: bool

    @cached_property
    def slow(self) -> int | None:
        """The row of the rank whose own step holds the others back; None also where that is its data."""
        row = self.holder
        if row is None:
            return None
        mirrored = self.excess_s(row) >= MIRRORED * (self.usual_met_s(row) - float(self.met_s[row]))
        return row if mirrored and self._sure(row) and self.differs(row) != WAITING else None

    def _sure(self, row: int) -> bool:
        later_s = self.late_s[row] - np.delete(self.late_s, row, axis=0).max(axis=0)
        return bool(later_s.mean() >= SURE * later_s.std() / np.sqrt(len(later_s)))

    def held(self, row: int) -> float:
        """Share of the time that it cost the others: also of steps that were not looked at."""
        return float(self.alone_s[row]) / self.time_s if self.time_s > 0 else 0.0

    def own_s(self, row: int) -> float:
        """Of a step, outside of the meeting."""
        return sum(self.parts_s[row].values())

    def usual_s(self, row: int) -> float:
        """The same of the others, at the median."""
        return median(self._others([self.own_s(each) for each in range(len(self.ranks))], row))

    def excess_s(self, row: int) -> float:
        """Of a step, how much longer it takes than the others do."""
        return self.own_s(row) - self.usual_s(row)

    def differs(self, row: int) -> str:
        """The part that most of the difference lies in."""
        mine = self.parts_s[row]
        return max(mine, key=lambda name: mine[name] - self.usual_part_s(row, name))

    def usual_part_s(self, row: int, name: str) -> float:
        """What the others take for it, at the median."""
        return median(self._others([parts[name] for parts in self.parts_s], row))

    def usual_met_s(self, row: int) -> float:
        """Of a step, how long the others stand in the meeting, at the median."""
        return median(self._others(self.met_s, row))

    @staticmethod
    def _others(values: Sequence[float] | NDArray[np.float64], row: int) -> list[float]:
        return [float(value) for at, value in enumerate(values) if at != row]


def collective_waits(ranks: Sequence[Recording]) -> CollectiveWaits | None:
    """None of a rank alone, or where too few steps have their phases on all of them."""
    if len(ranks) < 2:
        return None
    seen = [_met(evidence) for evidence in map(gather, ranks)]
    common = sorted(set.intersection(*map(set, seen)))
    if len(common) < ENOUGH_STEPS:
        return None
    steps = [[table[key] for key in common] for table in seen]
    on_device = all(BACKWARD in step.device_phases for row in steps for step in row)
    met_s = np.array([[_met_s(step, on_device) for step in row] for row in steps])
    return CollectiveWaits(
        ranks=tuple(recording.run.rank for recording in ranks),
        late_s=met_s.max(axis=0) - met_s,
        time_s=float(np.mean([sum(step.wait_s + step.step_s for step in row) for row in steps])),
        met_s=met_s.mean(axis=1),
        parts_s=_in_common([_parts(row, on_device) for row in steps]),
        on_device=on_device,
    )


def _met(evidence: Sequence[Evidence]) -> dict[Key, StepLine]:
    """Steady steps whose phases were looked at, with a meeting among them."""
    return {
        step_key(each, step): step
        for each in evidence
        for step in each.loop.steps
        if any(path.rsplit("/", 1)[-1] == BACKWARD for path in step.phases)
    }


def _met_s(step: StepLine, on_device: bool) -> float:
    if on_device:
        return step.device_phases[BACKWARD]
    return sum(seconds for path, seconds in step.phases.items() if is_outermost(path, MEETS))


def _parts(steps: Sequence[StepLine], on_device: bool) -> dict[str, float]:
    """Of a step, on average, all but the meeting."""
    sums = {WAITING: sum(step.wait_s for step in steps)}
    for step in steps:
        for path, seconds in (step.device_phases if on_device else step.phases).items():
            outermost, _, inside = path.partition("/")
            if not inside and outermost not in (*MEETS, "sampler"):
                sums[outermost] = sums.get(outermost, 0.0) + seconds
            elif inside and is_outermost(path, MEETS) and not on_device:
                sums[outermost] = sums.get(outermost, 0.0) - seconds
    whole_s = sum(step.wait_s + step.step_s - _met_s(step, on_device) for step in steps)
    sums[REST] = max(0.0, whole_s - sum(sums.values()))
    return {name: max(0.0, seconds) / len(steps) for name, seconds in sums.items()}


def _in_common(parts: Sequence[Mapping[str, float]]) -> tuple[Mapping[str, float], ...]:
    """What one rank has and another has not, such as a checkpoint, took the other no time."""
    names = dict.fromkeys(name for each in parts for name in each)
    return tuple({name: each.get(name, 0.0) for name in names} for each in parts)

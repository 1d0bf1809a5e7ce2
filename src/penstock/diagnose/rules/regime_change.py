"""The rate of the run changed once, and stayed changed.

With the same code and data, steps take another time from some step on: another job started on the machine, the page
cache filled up, the data became larger, or a thermal limit was reached. Or the run waited for data at first and no
longer does: the cache was cold, or another job has ended. Means over the whole run hide the change and describe neither
part.

Evidence: one step that divides the run into a quick and a slow part, each of which is even.

Remedy: find what changed at that moment; the recording names what it shows. After a slow beginning, find out whether it
recurs in each epoch: if so, a cache or a faster disk removes it, otherwise there is nothing to do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.core.arrays import mean
from penstock.core.format import format_ms
from penstock.core.types import Floats
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.suspect import Answer, Suspect

FACTOR_MIN = 1.5
"""The slow part takes at least this multiple of the time of the quick part."""
PART_MIN = 0.15
"""Share of the steps that each part holds at least."""
WINDOWS_MIN = 12
"""Least number of windows that the steps are divided into; each holds a multiple of num_workers steps."""
LOAD_CHANGE_MIN_CORES = 0.3
"""Cores by which the load of the machine must differ between the parts to be reported."""


def check(evidence: Evidence) -> Answer:
    """Suspect it if one step divides the run into an even quick part and an even slow part."""
    loop = evidence.loop
    window = max(1, evidence.settings.num_workers)
    while len(loop.steps) // (2 * window) >= 4 * WINDOWS_MIN:
        window *= 2
    count = len(loop.steps) // window
    if count < WINDOWS_MIN:
        return None
    cycle_s = (loop.wait_s + loop.busy_s)[: count * window].reshape(count, window).mean(axis=1)
    split = _best_split(cycle_s)
    before, after = cycle_s[:split], cycle_s[split:]
    if min(len(before), len(after)) < PART_MIN * count:
        return None
    step = split * window
    change = _Change(evidence, step, float(np.median(before)), float(np.median(after)))
    if _is_slower(after, before):
        return change.to_slower()
    waited_s = loop.wait_s[:step].mean() - loop.wait_s[step:].mean()
    if _is_slower(before, after) and waited_s > (before.mean() - after.mean()) / 2:
        return change.to_quicker()
    return None


def _is_slower(part: Floats, other: Floats) -> bool:
    """Return whether nearly all windows of a part are slower than nearly all of the other, and by enough."""
    separated = float(np.quantile(part, 0.2)) > float(np.quantile(other, 0.8))
    return separated and float(np.median(part)) >= FACTOR_MIN * float(np.median(other)) > 0


@dataclass(frozen=True)
class _Change:
    """The step at which the rate changed, and the seconds per step before and after."""

    evidence: Evidence
    step: int
    before_s: float
    after_s: float

    def to_slower(self) -> Suspect:
        return self._suspect(
            0.7,
            f"From step {self.step} on each step takes {self.after_s / self.before_s:.1f} times as long as before",
            "Find out what else started on the machine at that moment, and whether the data changed",
        )

    def to_quicker(self) -> Suspect:
        """Describe a run that waited for data at first; steps that were slow by themselves do not count."""
        factor = self.before_s / self.after_s
        return self._suspect(
            0.6,
            f"Until step {self.step} each step took {factor:.1f} times as long as since, waiting for data",
            "Find out whether it recurs with each epoch: if so, cache the data nearer; if not, it is over",
        )

    def _suspect(self, strength: float, summary: str, advice: str) -> Suspect:
        at_s = self.evidence.loop.steps[self.step].at_s
        times = f"{format_ms(self.before_s)} a step before, {format_ms(self.after_s)} after"
        slower = self.after_s > self.before_s
        return Suspect(
            strength=strength,
            summary=summary,
            evidence=(f"{times}, since {at_s:.0f} s into the run", *_load_facts(self.evidence, at_s, rising=slower)),
            advice=advice,
            gain=self.evidence.loop.cycle_s / min(self.before_s, self.after_s) - 1,
        )


def _best_split(cycle_s: Floats) -> int:
    """Return the index at which two means describe the windows best."""
    errors = [
        float(((cycle_s[:split] - cycle_s[:split].mean()) ** 2).sum())
        + float(((cycle_s[split:] - cycle_s[split:].mean()) ** 2).sum())
        for split in range(1, len(cycle_s))
    ]
    return int(np.argmin(errors)) + 1


def _load_facts(evidence: Evidence, at_s: float, *, rising: bool) -> tuple[str, ...]:
    """Return the loads of the machine that rose at that time, or fell."""
    facts = []
    for name, unit in (("others_cpu", "cores used by others"), ("iowait", "cores waiting for a disk")):
        before, after = (
            mean([getattr(line, name) for line in evidence.machine.system if (line.at_s < at_s) == early])
            for early in (True, False)
        )
        if (after - before if rising else before - after) > LOAD_CHANGE_MIN_CORES:
            facts.append(f"{unit}: {before:.1f} before, {after:.1f} after")
    return tuple(facts)

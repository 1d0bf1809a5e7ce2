"""In the middle of the run its pace changed, and stayed so.

The same code and data, another pace from some step on: another job came to the machine, the cache was full, the data
became larger, a thermal limit. Or it waited for data at first and no longer does: a cold cache, a neighbour that has
ended. Means over the whole run hide it, and describe neither part.

Remedy: look at what changed at that moment; the recording names what it saw. Of a slow beginning: see whether it comes
back with each epoch; if so, a cache or a faster disk ends it, else nothing need be done.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.core.arrays import mean
from penstock.core.format import format_ms
from penstock.core.types import Floats
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.suspect import Answer, Suspect

TIMES = 1.5
"""So many times slower after it than before."""
LEAST_PART = 0.15
"""Of the steps, on either side."""
WINDOWS = 12
"""At least so many, each a multiple of the workers."""


def check(evidence: Evidence) -> Answer:
    """One place that splits the run into a quick and a slow part, each even in itself."""
    window = max(1, evidence.settings.num_workers)
    while len(evidence.loop.steps) // (2 * window) >= 4 * WINDOWS:
        window *= 2
    count = len(evidence.loop.steps) // window
    if count < WINDOWS:
        return None
    cycle = (evidence.loop.wait_s + evidence.loop.busy_s)[: count * window].reshape(count, window).mean(axis=1)
    at = _split(cycle)
    before, after = cycle[:at], cycle[at:]
    if min(len(before), len(after)) < LEAST_PART * count:
        return None
    change = _Change(evidence, at * window, float(np.median(before)), float(np.median(after)))
    if _slower(before, after):
        return change.for_the_worse()
    waits = evidence.loop.wait_s[: at * window].mean() - evidence.loop.wait_s[at * window :].mean()
    if _slower(after, before) and waits > (before.mean() - after.mean()) / 2:
        return change.for_the_better()
    return None


def _slower(one: Floats, other: Floats) -> bool:
    """Whether the other's windows, nearly all of them, are slower than nearly all of the one's, and by enough."""
    apart = float(np.quantile(other, 0.2)) > float(np.quantile(one, 0.8))
    return apart and float(np.median(other)) >= TIMES * float(np.median(one)) > 0


@dataclass(frozen=True)
class _Change:
    """At which step, and what a step took before and after."""

    evidence: Evidence
    step: int
    before_s: float
    after_s: float

    def for_the_worse(self) -> Suspect:
        return self._suspect(
            0.7,
            f"From step {self.step} on each step takes {self.after_s / self.before_s:.1f} times as long as before",
            "Look at what else began on the machine, and at the data, at that moment",
        )

    def for_the_better(self) -> Suspect:
        """It waited at first; a step that was slow by itself then, as before compiling, is no such case."""
        times = self.before_s / self.after_s
        return self._suspect(
            0.6,
            f"Until step {self.step} each step took {times:.1f} times as long as since, waiting for data",
            "See whether it comes back with each epoch: if so, cache the data nearer; if not, it is over",
        )

    def _suspect(self, strength: float, summary: str, advice: str) -> Suspect:
        at_s = self.evidence.loop.steps[self.step].at_s
        paces = f"{format_ms(self.before_s)} a step before, {format_ms(self.after_s)} after"
        worse = self.after_s > self.before_s
        return Suspect(
            strength=strength,
            summary=summary,
            evidence=(f"{paces}, since {at_s:.0f} s into the run", *_changed(self.evidence, at_s, more=worse)),
            advice=advice,
            gain=self.evidence.loop.cycle_s / min(self.before_s, self.after_s) - 1,
        )


def _split(cycle: Floats) -> int:
    """Where two means describe the windows best."""
    costs = [
        float(((cycle[:at] - cycle[:at].mean()) ** 2).sum() + ((cycle[at:] - cycle[at:].mean()) ** 2).sum())
        for at in range(1, len(cycle))
    ]
    return int(np.argmin(costs)) + 1


def _changed(evidence: Evidence, at_s: float, *, more: bool) -> tuple[str, ...]:
    """What there was more of since then, or less."""
    facts = []
    for name, unit in (("others_cpu", "cores used by others"), ("iowait", "cores waiting for a disk")):
        parts = [
            [getattr(look, name) for look in evidence.machine.system if (look.at_s < at_s) == early]
            for early in (True, False)
        ]
        early, late = (mean(part) for part in parts)
        if (late - early if more else early - late) > 0.3:
            facts.append(f"{unit}: {early:.1f} before, {late:.1f} after")
    return tuple(facts)

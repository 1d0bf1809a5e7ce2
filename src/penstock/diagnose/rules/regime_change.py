"""In the middle of the run it became slower, and stayed so.

The same code and data, another pace from some step on: another job came to the machine, the cache was full, the data
became larger, a thermal limit. Means over the whole run hide it, and describe neither part.

Remedy: look at what changed at that moment; the recording names what it saw.
"""

from __future__ import annotations

import numpy as np

from penstock.diagnose.evidence import Evidence, milliseconds
from penstock.diagnose.suspect import Answer, Suspect

TIMES = 1.5
"""So many times slower after it than before."""
LEAST_PART = 0.15
"""Of the steps, on either side."""
WINDOWS = 12
"""At least so many, each a multiple of the workers."""


def look(evidence: Evidence) -> Answer:
    """One place that splits the run into a quick and a slow part, each even in itself."""
    window = max(1, evidence.workers)
    while len(evidence.steps) // (2 * window) >= 4 * WINDOWS:
        window *= 2
    count = len(evidence.steps) // window
    if count < WINDOWS:
        return None
    cycle = (evidence.wait_s + evidence.busy_s)[: count * window].reshape(count, window).mean(axis=1)
    at = _split(cycle)
    before, after = cycle[:at], cycle[at:]
    quick, slow = float(np.median(before)), float(np.median(after))
    apart = float(np.quantile(after, 0.2)) > float(np.quantile(before, 0.8))
    uneven = quick > 0 and slow >= TIMES * quick
    if min(len(before), len(after)) < LEAST_PART * count or not uneven or not apart:
        return None
    step = evidence.steps[at * window]
    return Suspect(
        strength=0.7,
        summary=f"From step {at * window} on each step takes {slow / quick:.1f} times as long as before",
        evidence=(
            f"{milliseconds(quick)} a step before, {milliseconds(slow)} after, since {step.at_s:.0f} s into the run",
            *_changed(evidence, step.at_s),
        ),
        advice="Look at what else began on the machine, and at the data, at that moment",
        gain=evidence.cycle_s / quick - 1,
    )


def _split(cycle: np.ndarray[tuple[int], np.dtype[np.float64]]) -> int:
    """Where two means describe the windows best."""
    costs = [
        float(((cycle[:at] - cycle[:at].mean()) ** 2).sum() + ((cycle[at:] - cycle[at:].mean()) ** 2).sum())
        for at in range(1, len(cycle))
    ]
    return int(np.argmin(costs)) + 1


def _changed(evidence: Evidence, at_s: float) -> tuple[str, ...]:
    facts = []
    for name, unit in (("others_cpu", "cores used by others"), ("iowait", "cores waiting for a disk")):
        parts = [
            [getattr(look, name) for look in evidence.system if (look.at_s < at_s) == early] for early in (True, False)
        ]
        early, late = (evidence.mean(part) for part in parts)
        if late > early + 0.3:
            facts.append(f"{unit}: {early:.1f} before, {late:.1f} after")
    return tuple(facts)

"""Drawing the next indices takes the training loop's time.

torch asks the sampler on the main thread, inside the wait for the next batch. A sampler that sorts, weights or looks
something up for every index makes each step pay for it.

Looks like `ipc_copy` and a slow worker; the clock around the sampler tells it apart.

Remedy: draw a whole epoch's indices at once (numpy, torch.multinomial), precompute groups, return lists from a
batch_sampler.
"""

from __future__ import annotations

from penstock.core.arrays import mean
from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.suspect import Answer, Suspect

LEAST = 0.04
"""Share of the cycle."""


def check(evidence: Evidence) -> Answer:
    """The sampler's own clock."""
    seconds = mean(evidence.loop.phase_s("sampler"))
    if evidence.loop.cycle_s <= 0 or seconds < LEAST * evidence.loop.cycle_s:
        return None
    cycle = evidence.loop.cycle_s
    return Suspect(
        strength=0.9,
        summary=f"The sampler takes {seconds / cycle:.0%} of every step",
        evidence=(
            f"drawing indices takes {format_ms(seconds)} of {format_ms(cycle)} per step, on the main thread",
            f"sampler: {evidence.settings.in_force('sampler') or 'not known by name'}",
        ),
        advice="Draw the epoch's indices in one go",
        gain=evidence.loop.gain_without(seconds),
    )

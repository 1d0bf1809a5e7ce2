"""Drawing the next indices takes time of the training loop.

torch calls the sampler on the main thread, inside the wait for the next batch. A sampler that sorts, weights or
searches for every index makes each step longer.

Evidence: the time spent in the sampler.

Similar causes: `ipc_copy` and a slow worker (there, the sampler takes no time).

Remedy: draw the indices of a whole epoch at once (NumPy, torch.multinomial), precompute groups, return lists from a
batch_sampler.
"""

from __future__ import annotations

from penstock.core.arrays import mean
from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.suspect import Answer, Suspect

SAMPLER_MIN = 0.04
"""Share of the time per step in the sampler."""


def check(evidence: Evidence) -> Answer:
    """Suspect it if the sampler takes a noticeable share of the step."""
    sampler_s, cycle_s = mean(evidence.loop.phase_s("sampler")), evidence.loop.cycle_s
    if cycle_s <= 0 or sampler_s < SAMPLER_MIN * cycle_s:
        return None
    return Suspect(
        strength=0.9,
        summary=f"The sampler takes {sampler_s / cycle_s:.0%} of every step",
        evidence=(
            f"drawing indices takes {format_ms(sampler_s)} of {format_ms(cycle_s)} per step, on the main thread",
            f"sampler: {evidence.settings.in_force('sampler') or 'its name is not recorded'}",
        ),
        advice="Draw the epoch's indices at once",
        saved_s=evidence.loop.saving(sampler_s),
    )

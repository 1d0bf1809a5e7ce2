"""Collating the samples of a batch takes a large part of a worker's time.

A `collate_fn` in Python that pads, stacks or converts sample by sample runs once per batch, in the worker that made it,
and cannot be shared between workers.

Evidence: the time spent in `collate_fn`.

Similar causes: `decode_bound` (there, collating takes little time).

Remedy: arrays of one shape, `torch.stack` into one allocation, padding in NumPy; or penstock.Loader, whose workers
write directly into the batch.
"""

from __future__ import annotations

from penstock.core.arrays import mean
from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.suspect import Answer, RuledOut, Suspect

COLLATE_MIN = 0.2
"""Share of the workers' time in collate_fn."""
UTILISATION_MIN = 0.2
"""Share of their time in which workers make batches: with less, the loop does not wait for them."""


def check(evidence: Evidence) -> Answer:
    """Suspect it if collating takes long, and the workers are busy."""
    workers = evidence.workers
    share = workers.share_of_fetch(workers.collate_s)
    if share < COLLATE_MIN or not workers.fetches:
        return None
    if workers.utilisation < UTILISATION_MIN:
        return RuledOut(
            f"workers make batches for {workers.utilisation:.0%} of their time: the loop does not wait for them"
        )
    return Suspect(
        strength=0.9,
        summary=f"Collating takes {share:.0%} of the time a batch takes to make",
        evidence=(
            f"collate_fn takes {format_ms(mean(workers.collate_s))} of {format_ms(workers.mean_fetch_s)} per batch",
            f"collate_fn is {evidence.settings.in_force('collate_fn') or 'not recorded by name'}",
        ),
        advice="Stack into one allocation, pad in numpy, and move what is done sample by sample out of collate_fn",
        remedy=lambda workload: workload.replace(
            cpu_s=workload.cpu_s * (1 - share), latency_s=workload.latency_s * (1 - share)
        ),
    )

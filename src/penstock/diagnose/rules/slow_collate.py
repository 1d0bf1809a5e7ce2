"""Putting the samples of a batch together takes a large part of a worker's time.

A `collate_fn` in Python that pads, stacks or converts sample by sample runs once per batch in the worker that made
it, and nobody else can take a part of it over.

Looks like `decode_bound`; the clock around collate tells it apart.

Remedy: arrays of one shape, `torch.stack` into one allocation, padding in numpy; or penstock.Loader, whose workers
write straight into the batch.
"""

from __future__ import annotations

from penstock.core.arrays import mean
from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.suspect import Answer, RuledOut, Suspect

LEAST = 0.2
"""Share of the workers' time."""
IDLE = 0.2
"""Workers that are busy for less of their time than this hold nobody up."""


def check(evidence: Evidence) -> Answer:
    """Collate takes long, and the loop waits for batches."""
    share = evidence.workers.share_of_fetch(evidence.workers.collate_s)
    if share < LEAST or not evidence.workers.fetches:
        return None
    if evidence.workers.utilisation < IDLE:
        return RuledOut(
            f"workers make batches for {evidence.workers.utilisation:.0%} of their time: nobody waits for them"
        )
    return Suspect(
        strength=0.9,
        summary=f"Collating takes {share:.0%} of the time a batch takes to make",
        evidence=(
            f"collate_fn takes {format_ms(mean(evidence.workers.collate_s))} of "
            f"{format_ms(evidence.workers.mean_fetch_s)} per batch",
            f"collate_fn is {evidence.settings.in_force('collate_fn') or 'not known by name'}",
        ),
        advice="Stack into one allocation, pad in numpy, and move what is done sample by sample out of collate_fn",
        remedy=lambda workload: workload.replace(
            cpu_s=workload.cpu_s * (1 - share), latency_s=workload.latency_s * (1 - share)
        ),
    )

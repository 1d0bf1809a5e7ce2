"""A few samples take many times as long to decode as the rest, and hold up whole batches.

A batch is as slow as its slowest sample's worker, and in-order delivery makes all others wait for it. A picture of
ten times the pixels, a progressive JPEG among baseline ones, a long text: one in a hundred is enough.

Looks like `lagging_worker` (but stragglers come to all workers) and `tail_latency` (but there the worker waits for
something, here it computes).

Remedy: a deeper prefetch, which rides over single slow batches; penstock.Loader, which spreads a batch's samples
over all workers; or shrinking those samples once, by packing.
"""

from __future__ import annotations

import numpy as np

from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.slow_batches import heavy
from penstock.diagnose.suspect import Answer, RuledOut, Suspect
from penstock.model.edits import without_stragglers


def check(evidence: Evidence) -> Answer:
    """Some batches take far longer than most, because of one sample that computes."""
    tail = heavy(evidence)
    if tail is None:
        return None
    if not tail.computing:
        return RuledOut("slow batches wait for something: they do not compute more than others")
    slowest = np.array([fetch.slowest_s for fetch in evidence.workers.fetches])
    usual = np.median(evidence.workers.fetch_s) / max(1.0, evidence.loop.samples_per_batch)
    return Suspect(
        strength=0.85,
        summary=f"{tail.share:.1%} of the batches hold a sample that takes far longer than the rest",
        evidence=(
            f"{tail.count} of {len(evidence.workers.fetches)} batches take {tail.times:.1f} times the median or more",
            f"their slowest sample takes {format_ms(float(np.median(slowest[tail.which])))}, "
            f"a usual one {format_ms(float(usual))}",
            f"they come from {tail.workers} of {evidence.settings.num_workers} workers",
        ),
        advice="penstock.Loader spreads a batch over all workers; or a larger prefetch_factor; or shrink those samples",
        remedy=without_stragglers,
    )

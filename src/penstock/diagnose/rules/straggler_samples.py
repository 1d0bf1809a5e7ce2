"""A few samples take many times as long to decode as the others, and delay whole batches.

A batch is as slow as its slowest sample, and in-order delivery makes all others wait for it. An image with ten times
the pixels, a progressive JPEG among baseline ones, a long text: one in a hundred is enough.

Evidence: some batches take far longer than most because they compute longer, and they come from all workers.

Similar causes: `lagging_worker` (there, the slow batches come from one worker) and `tail_latency` (there, the worker
waits; here it computes).

Remedy: more prefetching, which hides single slow batches; penstock.Loader, which spreads the samples of a batch over
all workers; or making those samples smaller once, by packing.
"""

from __future__ import annotations

import numpy as np

from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.slow_batches import find_slow_batches
from penstock.diagnose.suspect import Answer, RuledOut, Suspect
from penstock.model.edits import without_stragglers


def check(evidence: Evidence) -> Answer:
    """Suspect it if some batches take far longer than most because of a sample that computes."""
    found, fetches = find_slow_batches(evidence), evidence.workers.fetches
    if found is None:
        return None
    if not found.computing:
        return RuledOut("slow batches wait: they do not compute longer than others")
    slowest_s = float(np.median(np.array([fetch.slowest_s for fetch in fetches])[found.slow]))
    typical_s = float(np.median(evidence.workers.fetch_s) / max(1.0, evidence.loop.samples_per_batch))
    return Suspect(
        strength=0.85,
        summary=f"{found.share:.1%} of the batches hold a sample that takes far longer than the rest",
        evidence=(
            f"{found.count} of {len(fetches)} batches take {found.factor:.1f} times the median or more",
            f"their slowest sample takes {format_ms(slowest_s)}, a typical one {format_ms(typical_s)}",
            f"they come from {found.workers} of {evidence.settings.num_workers} workers",
        ),
        advice="penstock.Loader spreads a batch over all workers; or a larger prefetch_factor; or shrink those samples",
        remedy=without_stragglers,
    )

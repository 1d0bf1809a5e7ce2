"""Now and then a read takes many times as long as usual, in any worker.

Network file systems and object stores answer most requests at once and a few very late. In-order delivery turns each
late answer into a stall of the whole training.

Evidence: some batches take far longer than most because they wait longer, and they come from all workers.

Similar causes: `straggler_samples` (there, the slow batches compute), `latency_bound` (there, every read is slow) and
`storage_bandwidth` (there, a second reader makes the first one wait).

Remedy: more prefetching hides single late answers; larger reads make fewer of them; hedged reads or a cache near the
machine avoid them.
"""

from __future__ import annotations

from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.slow_batches import find_slow_batches
from penstock.diagnose.evidence.storage_waits import storage_waits
from penstock.diagnose.suspect import Answer, RuledOut, Suspect
from penstock.model.edits import without_stragglers


def check(evidence: Evidence) -> Answer:
    """Suspect it if some batches take far longer than most and wait in that time."""
    found = find_slow_batches(evidence)
    if found is None:
        return None
    if found.computing:
        return RuledOut("slow batches compute: no read was late")
    waits = storage_waits(evidence)
    if waits is not None and waits.scaling in ("constant", "thrashes"):
        return RuledOut(f"{waits.speedup_text}: the storage is full, so some reader always waits")
    return Suspect(
        strength=0.8,
        summary=f"{found.share:.1%} of the batches wait far longer for their data than the rest",
        evidence=(
            f"{found.count} of {len(evidence.workers.fetches)} batches take {found.factor:.1f} times the median or "
            "more, and wait in that time",
            f"they come from {found.workers} of {evidence.settings.num_workers} workers",
        ),
        advice="A larger prefetch_factor, larger reads (shards), or a cache on a local disk",
        remedy=without_stragglers,
    )

"""Now and then a read takes many times as long as usual, whoever does it.

Network file systems and object stores answer most requests at once and a few very late. In-order delivery turns
each late answer into a stall of the whole training.

Looks like `straggler_samples` (but those compute), `latency_bound` (but there every read is slow) and
`storage_bandwidth` (but there a second reader makes the first one wait).

Remedy: a deeper prefetch rides over single late answers; reading larger pieces makes fewer of them; hedged reads or
a cache near the machine end them.
"""

from __future__ import annotations

from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.slow_batches import heavy
from penstock.diagnose.evidence.storage_waits import storage_waits
from penstock.diagnose.suspect import Answer, RuledOut, Suspect
from penstock.model.edits import without_stragglers


def check(evidence: Evidence) -> Answer:
    """Some batches take far longer than most, and wait in that time."""
    tail = heavy(evidence)
    if tail is None:
        return None
    if tail.computing:
        return RuledOut("slow batches compute: nothing was late")
    seen = storage_waits(evidence)
    if seen is not None and seen.manner in ("share", "thrash"):
        return RuledOut(f"{seen.together_words}: it is full, and whoever comes last waits")
    return Suspect(
        strength=0.8,
        summary=f"{tail.share:.1%} of the batches wait far longer for their data than the rest",
        evidence=(
            f"{tail.count} of {len(evidence.workers.fetches)} batches take {tail.times:.1f} times the median or more, "
            "and wait in that time",
            f"they come from {tail.workers} of {evidence.settings.num_workers} workers",
        ),
        advice="A larger prefetch_factor, larger reads (shards), or a cache on a local disk",
        remedy=without_stragglers,
    )

"""Too many readers on one disk: in sum they get less than one of them would alone.

Each worker reads its own file; a disk's head goes back and forth between them and spends its time on the way. More
workers make it worse. This is how `num_workers` ties together what the disk can bear and what the cores can bear.

Looks like `storage_bandwidth`, but there the sum stays the same with fewer readers; here it grows.

Remedy: fewer workers that read; penstock.Loader, where one or two threads read for all workers; packed shards.
"""

from __future__ import annotations

from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.storage_waits import storage_waits
from penstock.diagnose.suspect import Answer, RuledOut, Suspect


def check(evidence: Evidence) -> Answer:
    """Waiting grows faster than the number of readers."""
    seen = storage_waits(evidence)
    if seen is None or seen.together is None:
        return None
    if seen.manner != "thrash":
        return RuledOut(seen.together_words)
    alone = 1 / seen.together
    return Suspect(
        strength=0.85,
        summary=f"{evidence.settings.num_workers} readers get in each other's way on the disk",
        evidence=(
            f"workers wait for bytes {seen.share:.0%} of their time",
            f"one reader alone would get about {alone:.1f} times what all get now: {seen.together_words}",
            f"{seen.read_bytes / 1e6:.0f} MB/s in all",
        ),
        advice="Fewer workers, or penstock.Loader with num_readers=1: reading and decoding are then two settings",
        remedy=lambda workload: workload.replace(latency_s=workload.latency_s / alone),
    )

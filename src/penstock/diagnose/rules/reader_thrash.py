"""Too many readers share one disk: together they get less than one of them would alone.

Each worker reads its own file, and the head of the disk moves between the files instead of reading. More workers make
it worse. This is how `num_workers` ties the number of readers that suits the disk to the number of processes that suits
the cores.

Evidence: after the run, one reader got more than all readers together.

Similar causes: `storage_bandwidth` (there, the throughput stays the same with fewer readers; here it rises).

Remedy: fewer workers that read; penstock.Loader, where one or two threads read for all workers; packed shards.
"""

from __future__ import annotations

from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.storage_waits import storage_waits
from penstock.diagnose.suspect import Answer, RuledOut, Suspect


def check(evidence: Evidence) -> Answer:
    """Suspect it if the throughput of all readers together is less than that of one."""
    waits = storage_waits(evidence)
    if waits is None or waits.speedup is None:
        return None
    if waits.scaling != "thrashes":
        return RuledOut(waits.speedup_text)
    alone = 1 / waits.speedup
    return Suspect(
        strength=0.85,
        summary=f"{evidence.settings.num_workers} readers slow each other down on the disk",
        evidence=(
            f"workers wait for bytes {waits.wait_share:.0%} of their time",
            f"one reader alone would get about {alone:.1f} times what all get now: {waits.speedup_text}",
            f"{waits.bytes_s / 1e6:.0f} MB/s in all",
        ),
        advice="Fewer workers, or penstock.Loader with num_readers=1: reading and decoding are then two settings",
        remedy=lambda workload: workload.replace(latency_s=workload.latency_s / alone),
    )

"""Every epoch reads the data from the disk again, because it does not stay in memory.

After the first epoch, files can come from the page cache if they fit into free memory. If they do not, or if the memory
limit of a container evicts them, every epoch is as slow as the first. For an object store there is no page cache at
all: only a cache of shards on a local disk keeps what was read.

Evidence: most bytes of later epochs come from a disk or a store, and workers wait for them.

Similar causes: `storage_bandwidth`, which this is often the reason for.

Remedy: fewer bytes (pack the shards), more memory, or a cache on a fast local disk.
"""

from __future__ import annotations

from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.storage_waits import storage_waits
from penstock.diagnose.evidence.store_reads import StoreReads, store_reads
from penstock.diagnose.suspect import Answer, RuledOut, Suspect

AGAIN_MIN = 0.5
"""Share of the bytes of later epochs that come from a disk or a store again."""


def check(evidence: Evidence) -> Answer:
    """Suspect it if later epochs read from the disk what the first one has read, and workers wait for that."""
    if (reads := store_reads(evidence)) is not None:
        return _check_store(reads)
    later = [fetch for fetch in evidence.workers.fetches if fetch.epoch > 0]
    read_bytes = sum(fetch.read_bytes for fetch in later)
    if storage_waits(evidence) is None or not later or read_bytes == 0:
        return None
    again = sum(fetch.device_bytes for fetch in later) / read_bytes
    if again < AGAIN_MIN:
        return RuledOut(f"{again:.0%} of the bytes of later epochs come from a disk")
    epoch_bytes = read_bytes / len({fetch.epoch for fetch in later})
    blocked = evidence.workers.blocked_in("read", "open")
    return Suspect(
        strength=0.6,
        summary=f"Every epoch reads its {epoch_bytes / 1e9:.1f} GB from the disk again",
        evidence=(f"{again:.0%} of the bytes of later epochs come from a disk, not from memory",),
        advice="Fewer bytes (penstock shards pack), more memory, or a cache on a local SSD",
        remedy=lambda workload: workload.replace(latency_s=workload.latency_s * (1 - blocked)),
    )


def _check_store(reads: StoreReads) -> Answer:
    """Check a penstock.Loader that reads from stores: without a cache it reads everything again."""
    if not reads.later_store_bytes:
        return None
    if reads.later_store_share < AGAIN_MIN:
        return RuledOut(f"{reads.later_store_share:.0%} of the bytes of later epochs come from a store")
    return Suspect(
        strength=0.6,
        summary=f"Later epochs read {reads.later_store_bytes / 1e9:.1f} GB from the store again",
        evidence=(
            f"{reads.later_store_share:.0%} of the bytes of later epochs come from a store, not from a cache",
            *reads.facts,
        ),
        advice="A cache on a local disk: penstock.Loader(cache=...)",
        gain=reads.gain,
        gain_of_loading=True,
    )

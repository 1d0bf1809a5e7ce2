"""The data is read from the disk again in every epoch: it does not stay in memory.

After the first epoch files can come from the page cache, if they fit into free memory. Where they do not, or a
limit on the container throws them out, every epoch is as slow as the first.

Looks like `storage_bandwidth`, whose cause it often is. Over an object store there is no page cache at all: only a
cache of shards on a local disk keeps what was read.

Remedy: fewer bytes (pack), more memory, or a cache on a fast local disk.
"""

from __future__ import annotations

from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.storage_waits import storage_waits
from penstock.diagnose.evidence.store_reads import StoreReads, store_reads
from penstock.diagnose.suspect import Answer, RuledOut, Suspect

AGAIN = 0.5
"""Share of the bytes of later passes that came from a device."""


def check(evidence: Evidence) -> Answer:
    """Later passes read from the device what the first one had read, and workers wait for it."""
    if (store := store_reads(evidence)) is not None:
        return _of_store(store)
    later = [fetch for fetch in evidence.workers.fetches if fetch.epoch > 0]
    read = sum(fetch.read_bytes for fetch in later)
    if storage_waits(evidence) is None or not later or read == 0:
        return None
    again = sum(fetch.device_bytes for fetch in later) / read
    if again < AGAIN:
        return RuledOut(f"{again:.0%} of the bytes of later passes come from a disk")
    per_pass = read / len({fetch.epoch for fetch in later})
    blocked = evidence.workers.blocked_in("read", "open")
    return Suspect(
        strength=0.6,
        summary=f"Every epoch reads its {per_pass / 1e9:.1f} GB from the disk again",
        evidence=(f"{again:.0%} of the bytes of later passes come from a disk, not from memory",),
        advice="Fewer bytes (penstock shards pack), more memory, or a cache on a local SSD",
        remedy=lambda workload: workload.replace(latency_s=workload.latency_s * (1 - blocked)),
    )


def _of_store(seen: StoreReads) -> Answer:
    """Of a penstock.Loader: nothing that a store sent is kept by anybody else."""
    if not seen.again_bytes:
        return None
    if seen.again < AGAIN:
        return RuledOut(f"{seen.again:.0%} of the bytes of later passes come from a store")
    return Suspect(
        strength=0.6,
        summary=f"Later epochs read {seen.again_bytes / 1e9:.1f} GB from the store again",
        evidence=(f"{seen.again:.0%} of the bytes of later passes come from a store, not from a cache", *seen.words),
        advice="A cache on a local disk: penstock.Loader(cache=...)",
        gain=seen.room,
    )

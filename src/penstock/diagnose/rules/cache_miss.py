"""The data is read from the disk again in every epoch: it does not stay in memory.

After the first epoch files can come from the page cache, if they fit into free memory. Where they do not, or a
limit on the container throws them out, every epoch is as slow as the first.

Looks like `storage_bandwidth`, whose cause it often is.

Remedy: fewer bytes (pack), more memory, or a cache on a fast local disk.
"""

from __future__ import annotations

from penstock.diagnose.evidence import Evidence
from penstock.diagnose.rules._storage import waiting
from penstock.diagnose.suspect import Answer, Innocent, Suspect

AGAIN = 0.5
"""Share of the bytes of later passes that came from a device."""


def look(evidence: Evidence) -> Answer:
    """Later passes read from the device what the first one had read, and workers wait for it."""
    later = [fetch for fetch in evidence.fetches if fetch.pass_ > 0]
    read = sum(fetch.read_bytes for fetch in later)
    if waiting(evidence) is None or not later or read == 0:
        return None
    again = sum(fetch.device_bytes for fetch in later) / read
    if again < AGAIN:
        return Innocent(f"{again:.0%} of the bytes of later passes come from a disk")
    per_pass = read / len({fetch.pass_ for fetch in later})
    blocked = evidence.blocked_in("read", "open")
    return Suspect(
        strength=0.6,
        summary=f"Every epoch reads its {per_pass / 1e9:.1f} GB from the disk again",
        evidence=(f"{again:.0%} of the bytes of later passes come from a disk, not from memory",),
        advice="Fewer bytes (penstock shards pack), more memory, or a cache on a local SSD",
        cure=lambda workload: workload.with_(alone_s=workload.alone_s * (1 - blocked)),
    )

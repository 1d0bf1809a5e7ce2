"""The run makes many small reads at random offsets: the storage is busy with seeking, not with sending.

A disk reads from a few hundred offsets per second, an SSD from some ten thousand, an object store from a few hundred
per connection, however few bytes each read has. A file for every sample, or a map-style dataset that reads one large
file at random, pays that price for every sample.

Evidence: workers wait in reads, and the reads are small.

Similar causes: `storage_bandwidth` (there, reads are large and the bytes per second are many) and `small_files` (there,
opening costs the time, not reading).

Remedy: shards, read in large blocks and shuffled within a window; or a disk without seek times.
"""

from __future__ import annotations

from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.storage_waits import LARGE_READ_BYTES, REMOTE_MIN, storage_waits
from penstock.diagnose.suspect import Answer, RuledOut, Suspect

OPEN_SHARE_MAX = 0.4
"""Share of the waiting in opening files from which on `small_files` is the cause."""


def check(evidence: Evidence) -> Answer:
    """Suspect it if workers wait in small reads."""
    waits = storage_waits(evidence)
    if waits is None or waits.remote_share > REMOTE_MIN or waits.bytes_per_read <= 0:
        return None
    if waits.bytes_per_read >= LARGE_READ_BYTES:
        return RuledOut(f"reads are large, {waits.bytes_per_read / 1024:.0f} KiB each")
    if waits.open_share > OPEN_SHARE_MAX:
        return RuledOut(f"{waits.open_share:.0%} of the waiting is in opening files")
    if waits.scaling in ("scales", "thrashes"):
        return RuledOut(waits.speedup_text)
    reads_s = waits.bytes_s / waits.bytes_per_read
    return Suspect(
        strength=0.85 if waits.scaling is not None else 0.6,
        summary=f"Small random reads: the storage gives no more than {reads_s:.0f} a second",
        evidence=(
            f"workers wait for bytes {waits.wait_share:.0%} of their time",
            f"{reads_s:.0f} reads/s of {waits.bytes_per_read / 1024:.1f} KiB: only {waits.bytes_s / 1e6:.1f} MB/s",
        ),
        advice="Put samples into shards and read them in blocks (penstock.Loader); or a cache on an SSD",
        remedy=lambda workload: workload.replace(latency_s=workload.latency_s * 0),
    )

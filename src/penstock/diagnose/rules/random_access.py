"""Many small reads at scattered places: the storage is busy seeking, not sending.

A disk gives some hundred places a second, an SSD some ten thousand, an object store a few hundred per connection,
however few bytes lie at each. A sample per file, or a map-style dataset over one large file read at random, pays
that price for every sample.

Looks like `storage_bandwidth` (but the bytes per second are few) and `small_files` (but there opening costs, not
reading).

Remedy: shards, read in large blocks and shuffled in a window; or a disk that has no seeks.
"""

from __future__ import annotations

from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.storage_waits import LARGE_BYTES, REMOTE, storage_waits
from penstock.diagnose.suspect import Answer, RuledOut, Suspect

OPENING = 0.4
"""Of the waiting in opening files: then it is small files."""


def check(evidence: Evidence) -> Answer:
    """Small reads, and workers wait in them."""
    seen = storage_waits(evidence)
    if seen is None or seen.remote > REMOTE or seen.bytes_per_read <= 0:
        return None
    if seen.bytes_per_read >= LARGE_BYTES:
        return RuledOut(f"reads are large, {seen.bytes_per_read / 1024:.0f} KiB each")
    if seen.open_share > OPENING:
        return RuledOut(f"{seen.open_share:.0%} of the waiting is in opening files")
    if seen.manner in ("apart", "thrash"):
        return RuledOut(seen.together_words)
    reads = seen.read_bytes / seen.bytes_per_read
    return Suspect(
        strength=0.85 if seen.manner is not None else 0.6,
        summary=f"Small scattered reads: {reads:.0f} a second is all the storage gives",
        evidence=(
            f"workers wait for bytes {seen.share:.0%} of their time",
            f"{reads:.0f} reads/s of {seen.bytes_per_read / 1024:.1f} KiB: only {seen.read_bytes / 1e6:.1f} MB/s",
        ),
        advice="Put samples into shards and read them in blocks (penstock.Loader); or a cache on an SSD",
        remedy=lambda workload: workload.replace(latency_s=workload.latency_s * 0),
    )

"""A file for every sample: opening costs more than reading.

Each open is a walk through directories, on a network file system a round trip or three; a million small files are a
million of them every epoch, and directory caches do not hold that many.

Looks like `random_access` (but there the file is open already) and `latency_bound`.

Remedy: put the files into shards once (tar); read those in large blocks.
"""

from __future__ import annotations

from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.storage_waits import storage_waits
from penstock.diagnose.suspect import Answer, RuledOut, Suspect

OPENS = 0.5
"""Per sample."""
OPENING = 0.3
"""Of the waiting."""
SMALL_BYTES = 256 << 10
"""Per file: the read of a smaller one costs as much as any request, and many of them lie in one read of a shard."""


def check(evidence: Evidence) -> Answer:
    """A file or more per sample, and workers wait in opening them."""
    seen = storage_waits(evidence)
    if seen is None:
        return None
    if seen.opens_per_sample < OPENS:
        return RuledOut(f"{seen.opens_per_sample:.2f} files are opened per sample")
    if seen.open_share < OPENING:
        return RuledOut(f"{seen.open_share:.0%} of the waiting is in opening files")
    opening = seen.open_share
    gone = opening + (evidence.workers.blocked_in("read") if _bytes_per_open(evidence) < SMALL_BYTES else 0.0)
    return Suspect(
        strength=0.85,
        summary=f"{seen.opens_per_sample:.1f} files are opened for every sample, and that is what takes the time",
        evidence=(
            f"workers wait {seen.share:.0%} of their time, {opening:.0%} of it in opening files",
            f"{seen.opens_per_sample:.1f} files opened per sample, {seen.bytes_per_read / 1024:.1f} KiB per read",
        ),
        advice="Put the files into shards (tar) and read those",
        remedy=lambda workload: workload.replace(latency_s=workload.latency_s * (1 - gone)),
    )


def _bytes_per_open(evidence: Evidence) -> float:
    opens = sum(fetch.opens for fetch in evidence.workers.fetches)
    return sum(fetch.read_bytes for fetch in evidence.workers.fetches) / max(1, opens)

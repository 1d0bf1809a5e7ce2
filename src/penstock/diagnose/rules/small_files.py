"""There is a file for every sample, and opening files costs more than reading them.

Each open resolves a path through directories; on a network file system it takes one to three round trips. A million
small files cost a million opens in every epoch, and directory caches do not hold that many.

Evidence: about one open per sample or more, and workers that wait in opening files.

Similar causes: `random_access` (there, the file is open already) and `latency_bound` (there, workers wait in reads).

Remedy: pack the files into shards (tar) once, and read those in large blocks.
"""

from __future__ import annotations

from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.storage_waits import storage_waits
from penstock.diagnose.suspect import Answer, RuledOut, Suspect

OPENS_MIN = 0.5
"""Files opened per sample."""
OPEN_SHARE_MIN = 0.3
"""Share of the waiting in opening files."""
SMALL_FILE_BYTES = 256 << 10
"""Reading a smaller file costs as much as any request; in a shard, one read brings many such samples."""


def check(evidence: Evidence) -> Answer:
    """Suspect it if workers open a file or more per sample, and wait in opening them."""
    waits = storage_waits(evidence)
    if waits is None:
        return None
    if waits.opens_per_sample < OPENS_MIN:
        return RuledOut(f"{waits.opens_per_sample:.2f} files are opened per sample")
    if waits.open_share < OPEN_SHARE_MIN:
        return RuledOut(f"{waits.open_share:.0%} of the waiting is in opening files")
    small = _bytes_per_open(evidence) < SMALL_FILE_BYTES
    avoidable = waits.open_share + (evidence.workers.blocked_in("read") if small else 0.0)
    return Suspect(
        strength=0.85,
        summary=f"{waits.opens_per_sample:.1f} files are opened for every sample, and that takes the time",
        evidence=(
            f"workers wait {waits.wait_share:.0%} of their time, {waits.open_share:.0%} of it in opening files",
            f"{waits.opens_per_sample:.1f} files opened per sample, {waits.bytes_per_read / 1024:.1f} KiB per read",
        ),
        advice="Put the files into shards (tar) and read those",
        remedy=lambda workload: workload.replace(latency_s=workload.latency_s * (1 - avoidable)),
    )


def _bytes_per_open(evidence: Evidence) -> float:
    opens = sum(fetch.opens for fetch in evidence.workers.fetches)
    return sum(fetch.read_bytes for fetch in evidence.workers.fetches) / max(1, opens)

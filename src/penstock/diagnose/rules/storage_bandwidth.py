"""The storage delivers as many bytes as it can, and that is too few.

The workers share the bandwidth of the storage: with twice the workers, each waits twice as long. More workers or more
prefetching change nothing, whatever the step times suggest.

Evidence: workers wait in large reads, and several readers together get about what one gets.

Similar causes: `lagging_worker` (there, batches are ready at the slow steps), `latency_bound` (there, the time of a
read does not depend on the number of readers), `random_access` and `reader_thrash` (there, the bytes per second are far
below what the device can stream).

Remedy: fewer bytes (pack the shards: smaller images, a codec), a faster disk or a cache on one, or more copies.
"""

from __future__ import annotations

from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.storage_waits import LARGE_READ_BYTES, REMOTE_MIN, StorageWaits, storage_waits
from penstock.diagnose.evidence.store_reads import StoreReads, store_reads
from penstock.diagnose.suspect import Answer, RuledOut, Suspect

DISK_BUSY_MIN = 0.8
"""Share of the time that the busiest disk is busy, from which on it is the likely limit."""


def check(evidence: Evidence) -> Answer:
    """Suspect it if workers wait in large reads, whose throughput does not rise with the number of readers."""
    if (reads := store_reads(evidence)) is not None:
        return _check_store(reads)
    waits = storage_waits(evidence)
    if waits is None or waits.remote_share > REMOTE_MIN:
        return None
    if 0 < waits.bytes_per_read < LARGE_READ_BYTES:
        return RuledOut(f"reads are small, {waits.bytes_per_read / 1024:.1f} KiB each: seeks cost more than bytes")
    if waits.scaling in ("scales", "thrashes"):
        return RuledOut(waits.speedup_text)
    return Suspect(
        strength=_strength(waits),
        summary=f"The storage is full: it gives no more than {waits.bytes_s / 1e6:.0f} MB/s",
        evidence=(
            f"workers wait for bytes {waits.wait_share:.0%} of their time",
            f"{waits.bytes_s / 1e6:.0f} MB/s in reads of {waits.bytes_per_read / 1024:.0f} KiB",
            *_device_facts(waits),
        ),
        advice="Fewer bytes per sample (penstock shards pack), or a faster disk or cache under the shards",
        remedy=lambda workload: workload.replace(latency_s=workload.latency_s * 0),
        experiment="Halve num_workers: the same rate means the storage is full, half the rate means each read is slow",
    )


def _check_store(reads: StoreReads) -> Answer:
    """Check a penstock.Loader: its answers begin soon, and their bytes take long."""
    if reads.bound == "latency":
        return RuledOut(f"the loader waits for answers, not for bytes: {reads.facts[0]}")
    return Suspect(
        strength=0.4 if reads.bound is None else 0.85 if reads.more_readers_helped is False else 0.65,
        summary=f"The store is full: it gives no more than {reads.bytes_s / 1e6:.0f} MB/s",
        evidence=reads.facts,
        advice="A cache on a local disk (Loader(cache=...)), or fewer bytes per sample (penstock shards pack)",
        gain=reads.gain,
        gain_of_loading=True,
        experiment=f"Set num_readers={2 * reads.readers}: the same rate means that the store is full",
    )


def _strength(waits: StorageWaits) -> float:
    if waits.scaling is not None:
        return 0.9
    return 0.8 if waits.busiest_disk is not None and waits.busiest_disk >= DISK_BUSY_MIN else 0.45


def _device_facts(waits: StorageWaits) -> tuple[str, ...]:
    facts = []
    if waits.busiest_disk is not None:
        facts.append(f"the busiest disk was busy {waits.busiest_disk:.0%} of the time")
    if waits.scaling is not None:
        facts.append(waits.speedup_text)
    return tuple(facts)

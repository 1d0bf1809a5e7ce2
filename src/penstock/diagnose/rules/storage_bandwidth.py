"""The storage gives all the bytes it can, and that is too few.

Workers wait in large reads, several of them at once, and each gets its share of one stream: twice the workers wait
twice as long. More workers or a deeper prefetch change nothing, whatever the trace suggests.

Looks like `lagging_worker` (but here nothing is ready at the stall), `latency_bound` (but there time per read does
not depend on the number of readers), `random_access` and `reader_thrash` (but there the bytes per second are far
below what the device can stream).

Remedy: fewer bytes (pack the shards: smaller pictures, a codec), a faster disk or a cache on one, more copies.
"""

from __future__ import annotations

from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.storage_waits import LARGE_BYTES, REMOTE, StorageWaits, storage_waits
from penstock.diagnose.evidence.store_reads import StoreReads, store_reads
from penstock.diagnose.suspect import Answer, RuledOut, Suspect

BUSY = 0.8


def check(evidence: Evidence) -> Answer:
    """Large reads, a shared stream."""
    if (store := store_reads(evidence)) is not None:
        return _of_store(store)
    seen = storage_waits(evidence)
    if seen is None or seen.remote > REMOTE:
        return None
    if 0 < seen.bytes_per_read < LARGE_BYTES:
        return RuledOut(f"reads are small, {seen.bytes_per_read / 1024:.1f} KiB each: seeks cost more than bytes")
    if seen.manner in ("apart", "thrash"):
        return RuledOut(seen.together_words)
    return Suspect(
        strength=_strength(seen),
        summary=f"The storage is full: {seen.read_bytes / 1e6:.0f} MB/s is all that comes",
        evidence=(
            f"workers wait for bytes {seen.share:.0%} of their time",
            f"{seen.read_bytes / 1e6:.0f} MB/s in reads of {seen.bytes_per_read / 1024:.0f} KiB",
            *_device(seen),
        ),
        advice="Fewer bytes per sample (penstock shards pack), or a faster disk or cache under the shards",
        remedy=lambda workload: workload.replace(latency_s=workload.latency_s * 0),
        experiment="Halve num_workers: the same rate says it is the storage, half the rate says each read is slow",
    )


def _of_store(seen: StoreReads) -> Answer:
    """Of a penstock.Loader: answers begin soon, and their bytes are long in coming."""
    if seen.bound == "latency":
        return RuledOut(f"answers are waited for, not bytes: {seen.words[0]}")
    return Suspect(
        strength=0.4 if seen.bound is None else 0.85 if seen.more_helped is False else 0.65,
        summary=f"The store is full: {seen.bytes_s / 1e6:.0f} MB/s is all that comes",
        evidence=seen.words,
        advice="A cache on a local disk (Loader(cache=...)), or fewer bytes per sample (penstock shards pack)",
        gain=seen.room,
        experiment=f"Set num_readers={2 * seen.readers}: the same rate says that the store is full",
    )


def _strength(seen: StorageWaits) -> float:
    if seen.manner is not None:
        return 0.9
    return 0.8 if seen.busiest is not None and seen.busiest >= BUSY else 0.45


def _device(seen: StorageWaits) -> tuple[str, ...]:
    facts = []
    if seen.busiest is not None:
        facts.append(f"the busiest disk was busy {seen.busiest:.0%} of the time")
    if seen.manner is not None:
        facts.append(seen.together_words)
    return tuple(facts)

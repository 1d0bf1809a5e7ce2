"""What could be changed for a penstock.Loader that waits for an object store: more in flight, a cache, fewer bytes."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.format import format_bytes
from penstock.core.plan import Change
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.store_reads import StoreReads, store_reads
from penstock.plan.data_changes import causes


def store_changes(evidence: Evidence) -> tuple[Change, ...]:
    """Where a rule names the cause; latency asks for requests in flight, bandwidth for a cache and fewer bytes."""
    seen = store_reads(evidence)
    if seen is None:
        return ()
    named = causes(evidence, "latency_bound", "storage_bandwidth", "cache_miss")
    found: list[Change] = []
    if "latency_bound" in named:
        found.append(_readers(seen))
    if "storage_bandwidth" in named or "cache_miss" in named:
        found.append(_cache(evidence, seen))
    if "storage_bandwidth" in named:
        found.append(_fewer_bytes(seen))
    return tuple(found)


def _readers(seen: StoreReads) -> Change:
    then = seen.needed_readers
    return Change(
        scope="loader",
        name="reading.num_readers",
        now=seen.readers,
        then=then,
        reason=f"A request waits {seen.answer_s * 1e3:.0f} ms for its answer and {seen.body_s * 1e3:.0f} ms for its "
        f"bytes: with {then} reads in flight instead of {seen.readers} nobody would wait (Little's law), as long as "
        "the store has the bandwidth",
        gain=min(seen.room, then / seen.readers - 1),
        cost="memory for as many blocks",
    )


def _cache(evidence: Evidence, seen: StoreReads) -> Change:
    return Change(
        scope="data",
        name="cache",
        now="read from the store in every epoch",
        then="kept on a local disk (penstock.Loader(cache=...))",
        reason=f"The store gives {seen.bytes_s / 1e6:,.0f} MB/s; from the second epoch on shards would come from the "
        "disk. Assumes that they fit there, and that the disk is faster than workers and step",
        gain=seen.room,
        cost=" and ".join(_cost(evidence, seen)),
    )


def _cost(evidence: Evidence, seen: StoreReads) -> Iterator[str]:
    batches = evidence.loader.batches
    if batches:
        size = format_bytes(seen.bytes_s * evidence.loop.cycle_s * batches)
        yield f"{size} on that disk for what this rank reads in an epoch"
    else:
        yield "the shards once more on that disk"
    yield "up to that much more from the store in the first epoch"


def _fewer_bytes(seen: StoreReads) -> Change:
    return Change(
        scope="data",
        name="bytes",
        now="as they are",
        then="fewer per sample (`penstock shards pack`: smaller pictures, zstd)",
        reason=f"The store gives {seen.bytes_s / 1e6:,.0f} MB/s however it is asked: half the bytes are twice the "
        f"rate, up to {seen.room:+.0%} samples/s; how much smaller your samples can be is not known here",
        cost="every sample packed and uploaded once",
    )

"""Changes for penstock.Loader: reads in flight, and for an object store also a cache and fewer bytes.

A loader that waits for an object store gets changes by the cause that a rule names; for a torch DataLoader, the storage
behaviour seen in its run says how many reads penstock.Loader should begin with.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from penstock.core.arrays import mean
from penstock.core.format import format_bytes
from penstock.core.plan import Change
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.storage_waits import REMOTE_MIN, storage_waits
from penstock.diagnose.evidence.store_reads import StoreReads, store_reads
from penstock.diagnose.verdict import LoaderDiagnosis

MAX_READERS = 32
"""Reads in flight beyond which object stores do not get faster."""


def loader_changes(loader: LoaderDiagnosis) -> tuple[Change, ...]:
    """Return the changes for the storage of a loader; penstock.Loader finds its other settings itself."""
    return (*_readers_for_files(loader.evidence), *_store_changes(loader))


# -- a torch DataLoader that waits for files ---------------------------------------------------------------------


def _readers_for_files(evidence: Evidence) -> Iterator[Change]:
    """Propose reads in flight where the recording shows how the storage behaves with several readers."""
    waits = storage_waits(evidence)
    if waits is None or evidence.loader.type == "penstock":
        return
    if waits.scaling == "thrashes":
        yield _readers_change(1, f"several readers slow each other: {waits.speedup_text}")
    elif waits.scaling == "constant":
        yield _readers_change(2, f"one reader fills the storage, a second fills the gaps: {waits.speedup_text}")
    elif waits.scaling == "scales" or waits.remote_share > REMOTE_MIN:
        step_s = max(mean(evidence.contention.step_s), 1e-6)
        blocked_s = mean(evidence.workers.blocked_s)
        needed = ceil(blocked_s / step_s)
        yield _readers_change(
            min(MAX_READERS, max(1, needed)),
            f"a batch waits {blocked_s:.2g} s for answers and a step takes {step_s:.2g} s: {needed} at a time keep up "
            "(Little's law)",
        )


def _readers_change(number: int, reason: str) -> Change:
    return Change(scope="loader", name="reading.num_readers", now=None, then=number, reason=reason)


# -- a penstock.Loader that waits for an object store ------------------------------------------------------------


def _store_changes(loader: LoaderDiagnosis) -> Iterator[Change]:
    """Propose changes by the cause: more requests against latency, a cache and fewer bytes against low bandwidth."""
    store = store_reads(loader.evidence)
    if store is None:
        return
    if "latency_bound" in loader.suspects:
        yield _more_readers(store)
    if "storage_bandwidth" in loader.suspects or "cache_miss" in loader.suspects:
        yield _local_cache(loader.evidence, store)
    if "storage_bandwidth" in loader.suspects:
        yield _fewer_bytes(store)


def _more_readers(store: StoreReads) -> Change:
    then = store.needed_readers
    return Change(
        scope="loader",
        name="reading.num_readers",
        now=store.readers,
        then=then,
        reason=f"A request waits {store.answer_s * 1e3:.0f} ms for its answer and {store.body_s * 1e3:.0f} ms for its "
        f"bytes: with {then} reads in flight instead of {store.readers} no step would wait (Little's law), as long as "
        "the store has the bandwidth",
        gain=min(store.gain, then / store.readers - 1),
        cost="memory for as many blocks",
    )


def _local_cache(evidence: Evidence, store: StoreReads) -> Change:
    return Change(
        scope="data",
        name="cache",
        now="read from the store in every epoch",
        then="kept on a local disk (penstock.Loader(cache=...))",
        reason=f"The store gives {store.bytes_s / 1e6:,.0f} MB/s; from the second epoch on shards would come from the "
        "disk. Assumes that they fit there, and that the disk is faster than workers and step",
        gain=store.gain,
        cost=" and ".join(_cache_cost(evidence, store)),
    )


def _cache_cost(evidence: Evidence, store: StoreReads) -> Iterator[str]:
    batches = evidence.loader.batches
    if batches:
        size = format_bytes(store.bytes_s * evidence.loop.cycle_s * batches)
        yield f"{size} on that disk for what this rank reads in an epoch"
    else:
        yield "the shards once more on that disk"
    yield "up to that much more from the store in the first epoch"


def _fewer_bytes(store: StoreReads) -> Change:
    return Change(
        scope="data",
        name="bytes",
        now="as they are",
        then="fewer per sample (`penstock shards pack`: smaller images, zstd)",
        reason=f"The store gives {store.bytes_s / 1e6:,.0f} MB/s with any number of requests: half the bytes are twice "
        f"the rate, up to {store.gain:+.0%} samples/s; how much smaller the samples can be is not known",
        cost="every sample packed and uploaded once",
    )

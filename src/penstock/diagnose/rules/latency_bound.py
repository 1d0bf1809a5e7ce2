"""Every request takes its time, however few there are: the way is long, not narrow.

An object store or a network file system answers after milliseconds; a worker that asks for one thing at a time
spends its life waiting, while the machine's cores and the storage's bandwidth are free.

Looks like `storage_bandwidth`: workers wait in reads there, too; but here more requests at the same time would be
answered just as fast. Looks like `too_few_workers`, but these workers do not compute.

A penstock.Loader reads blocks many at a time and needs other evidence: of each request the time until its answer begins
against that of its bytes, and whether more reads in flight brought more when the loader tried.

Remedy: more requests in flight. For torch more workers (they cost memory, not cores); penstock.Loader reads with up
to 32 threads, whatever the number of workers; larger requests (shards); a local cache.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from penstock.core.arrays import mean
from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.storage_waits import REMOTE, StorageWaits, storage_waits
from penstock.diagnose.evidence.store_reads import StoreReads, store_reads
from penstock.diagnose.rules.storage_bandwidth import BUSY
from penstock.diagnose.suspect import Answer, RuledOut, Suspect
from penstock.model.workload import Workload

MOST_WORKERS = 64
"""Asked for: beyond that, threads that read are the answer, not processes."""
SMALL_REQUEST = 1 << 20
"""Bytes: larger requests spend more of their time on bytes, and less on waiting."""


def check(evidence: Evidence) -> Answer:
    """Workers wait, and not for each other."""
    if (store := store_reads(evidence)) is not None:
        return _of_store(store)
    seen = storage_waits(evidence)
    if seen is None or seen.open_share > 0.5:
        return None
    if seen.manner in ("share", "thrash"):
        return RuledOut(f"something is full: {seen.together_words}")
    if seen.manner is None and seen.busiest is not None and seen.busiest >= BUSY:
        return RuledOut(f"the disk is busy {seen.busiest:.0%} of the time")
    each = mean(evidence.workers.blocked_s) / max(1.0, evidence.loop.samples_per_batch)
    return Suspect(
        strength=_strength(seen),
        summary=f"Workers wait {format_ms(each)} per sample for answers, one at a time",
        evidence=(
            f"workers wait {seen.share:.0%} of their time and compute {1 - seen.share:.0%}",
            f"{evidence.machine.free_cores:.1f} of {evidence.machine.cores:g} cores are free, {seen.read_bytes / 1e6:.1f} MB/s read",
            *_how(seen),
        ),
        advice=f"More in flight: num_workers={_enough(evidence)} or more; or penstock.Loader, which reads ahead",
        remedy=_at_once,
        experiment="Double num_workers: twice the rate says latency, the same rate says a full device",
    )


def _of_store(seen: StoreReads) -> Answer:
    """Of a penstock.Loader: requests wait for their answers, and others would be answered beside them."""
    if seen.bound == "bandwidth":
        return RuledOut(f"the bytes take the time: {seen.words[0]}")
    smaller = "; larger ones, too (block_bytes)" if seen.request_bytes < SMALL_REQUEST else ""
    return Suspect(
        strength=0.45 if seen.bound is None else 0.85,
        summary=f"The loader waits for a store, {format_ms(seen.answer_s + seen.body_s)} for every request",
        evidence=seen.words,
        advice=f"More requests in flight: ReadOptions(num_readers={seen.needed_readers}){smaller}",
        gain=seen.room,
        experiment=f"Set num_readers={2 * seen.readers}: a higher rate says latency, the same rate says a full store",
    )


def _at_once(workload: Workload) -> Workload:
    """No answer takes its usual time; those that are late beyond that stay late."""
    return workload.replace(
        latency_s=workload.latency_s - np.minimum(workload.latency_s, np.median(workload.latency_s))
    )


def _strength(seen: StorageWaits) -> float:
    if seen.manner is not None or seen.remote > REMOTE:
        return 0.9
    return 0.6


def _how(seen: StorageWaits) -> tuple[str, ...]:
    facts = []
    if seen.remote > 0:
        facts.append(f"{seen.remote:.0%} of the waiting is for the network or a timer")
    if seen.manner is not None:
        facts.append(seen.together_words)
    return tuple(facts)


def _enough(evidence: Evidence) -> int:
    """Workers so that W/S reaches the step's own rate, by the utilisation law."""
    step = max(1e-6, mean(evidence.loop.busy_s))
    return max(evidence.settings.num_workers + 1, min(MOST_WORKERS, ceil(evidence.workers.mean_fetch_s / step)))

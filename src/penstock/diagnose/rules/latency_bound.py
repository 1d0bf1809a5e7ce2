"""Every request to the storage takes its time, however few requests there are: latency limits the rate, not bandwidth.

An object store or a network file system answers after milliseconds. A worker that requests one thing at a time spends
most of its time waiting, while the cores of the machine and the bandwidth of the storage are free.

Evidence: workers wait in reads, the network or timers, and the storage serves several readers as quickly as one. A
penstock.Loader reads many blocks at a time and needs other evidence: the time of a request until its answer begins
against that of its bytes, and whether more reads in flight raised the throughput when the loader tried.

Similar causes: `storage_bandwidth` (workers wait in reads there too, but more requests at a time would not be answered
as quickly) and `too_few_workers` (there, workers compute).

Remedy: more requests in flight. For torch that means more workers (they cost memory, not cores); penstock.Loader reads
with up to 32 threads, whatever the number of workers. Also larger requests (shards) or a local cache.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from penstock.core.arrays import mean
from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.storage_waits import REMOTE_MIN, StorageWaits, storage_waits
from penstock.diagnose.evidence.store_reads import StoreReads, store_reads
from penstock.diagnose.rules.storage_bandwidth import DISK_BUSY_MIN
from penstock.diagnose.suspect import Answer, RuledOut, Suspect
from penstock.model.workload import Workload

WORKERS_MAX = 64
"""Largest number of workers that is advised: beyond it, threads that read are better than processes."""
SMALL_REQUEST_BYTES = 1 << 20
"""Larger requests spend more of their time on bytes and less on latency."""
OPEN_SHARE_MAX = 0.5
"""Share of the waiting in opening files from which on `small_files` is the cause."""


def check(evidence: Evidence) -> Answer:
    """Suspect it if workers wait, and not for a shared resource."""
    if (reads := store_reads(evidence)) is not None:
        return _check_store(reads)
    waits, machine = storage_waits(evidence), evidence.machine
    if waits is None or waits.open_share > OPEN_SHARE_MAX:
        return None
    if waits.scaling in ("constant", "thrashes"):
        return RuledOut(f"a shared resource is full: {waits.speedup_text}")
    if waits.scaling is None and waits.busiest_disk is not None and waits.busiest_disk >= DISK_BUSY_MIN:
        return RuledOut(f"the disk is busy {waits.busiest_disk:.0%} of the time")
    sample_s = mean(evidence.workers.blocked_s) / max(1.0, evidence.loop.samples_per_batch)
    return Suspect(
        strength=0.9 if waits.scaling is not None or waits.remote_share > REMOTE_MIN else 0.6,
        summary=f"Workers wait {format_ms(sample_s)} per sample for answers, one at a time",
        evidence=(
            f"workers wait {waits.wait_share:.0%} of their time and compute {1 - waits.wait_share:.0%}",
            f"{machine.free_cores:.1f} of {machine.cores:g} cores are free, {waits.bytes_s / 1e6:.1f} MB/s read",
            *_facts(waits),
        ),
        advice=f"More in flight: num_workers={_needed_workers(evidence)} or more; or penstock.Loader, which prefetches",
        remedy=_without_usual_latency,
        experiment="Double num_workers: twice the rate means latency, the same rate means a full device",
    )


def _check_store(reads: StoreReads) -> Answer:
    """Check a penstock.Loader: its requests wait for their answers, and more requests would be answered meanwhile."""
    if reads.bound == "bandwidth":
        return RuledOut(f"the bytes take the time: {reads.facts[0]}")
    larger = "; also larger ones (block_bytes)" if reads.request_bytes < SMALL_REQUEST_BYTES else ""
    return Suspect(
        strength=0.45 if reads.bound is None else 0.85,
        summary=f"The loader waits for a store, {format_ms(reads.answer_s + reads.body_s)} for every request",
        evidence=reads.facts,
        advice=f"More requests in flight: ReadOptions(num_readers={reads.needed_readers}){larger}",
        gain=reads.gain,
        gain_of_loading=True,
        experiment=f"Set num_readers={2 * reads.readers}: a higher rate means latency, the same rate a full store",
    )


def _without_usual_latency(workload: Workload) -> Workload:
    """Return the workload with answers that take no time; only answers later than the median are still waited for."""
    return workload.replace(
        latency_s=workload.latency_s - np.minimum(workload.latency_s, np.median(workload.latency_s))
    )


def _facts(waits: StorageWaits) -> tuple[str, ...]:
    facts = []
    if waits.remote_share > 0:
        facts.append(f"{waits.remote_share:.0%} of the waiting is for the network or a timer")
    if waits.scaling is not None:
        facts.append(waits.speedup_text)
    return tuple(facts)


def _needed_workers(evidence: Evidence) -> int:
    """Return the number of workers whose rate reaches that of the step, by the utilisation law."""
    step_s = max(1e-6, mean(evidence.loop.busy_s))
    return max(evidence.settings.num_workers + 1, min(WORKERS_MAX, ceil(evidence.workers.mean_fetch_s / step_s)))

"""How long torch's workers wait for bytes, and how that time changes with the number of readers.

Three causes resemble each other, because workers wait in reads while cores are free. They differ in how the time of a
read grows with the number of workers that read at the same time. A full device gives each reader its share, so the time
grows with the number of readers. Latency is the same for every reader, so the time stays constant. A thrashing disk
delivers less in all, so the time grows faster than the number of readers. The run itself shows no such contrast,
because all workers read all the time. So `penstock run` reads once more after the script, with one reader and with all
of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Literal

from penstock.core.arrays import mean
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.worker_cpu import waits_for_workers

WAIT_MIN = 0.4
"""Share of the workers' time, without waiting for a core, in which they wait for bytes."""
StorageScaling = Literal["scales", "constant", "thrashes"]
"""The throughput of all readers together: as many times that of one reader, the same, or less."""
THRASHES_MAX = 0.65
"""A storage thrashes if all readers together get less than this share of what one gets: a quarter less may be
chance."""
LARGE_READ_BYTES = 32 << 10
"""A read of at least this size takes a time that depends on its bytes, not on seeking."""
SIMILAR_LOG = 0.4
"""Two rates whose logarithms differ by less do not decide between two access patterns."""
REMOTE_MIN = 0.5
"""Share of the waiting in the network or a timer from which on the performance of a disk does not matter."""


@dataclass(frozen=True)
class StorageWaits:
    """How the workers of a loader wait for their data."""

    wait_share: float
    """Share of the workers' time in which they wait for bytes."""
    bytes_s: float
    """Bytes per second that all workers read."""
    device_bytes_s: float
    """Bytes per second that came from a block device."""
    bytes_per_read: float
    opens_per_sample: float
    open_share: float
    """Share of the waiting in opening files and reading their metadata."""
    remote_share: float
    """Share of the waiting in the network or a timer."""
    busiest_disk: float | None
    """Share of the time in which the busiest disk was busy; None if the run did not read from a disk."""
    speedup: float | None
    """Throughput of all readers after the run, over that of one reader; None if not measured, or of no importance."""
    readers: int
    """Number of these readers."""

    @property
    def scaling(self) -> StorageScaling | None:
        """How the throughput changes with the number of readers; None if that was not measured."""
        if self.speedup is None:
            return None
        if self.speedup <= THRASHES_MAX:
            return "thrashes"
        return "scales" if self.speedup >= self.readers**0.5 else "constant"

    @property
    def speedup_text(self) -> str:
        """The measured speed-up as text."""
        return f"{self.readers} readers get {self.speedup:.1f} times what one gets alone"


def storage_waits(evidence: Evidence) -> StorageWaits | None:
    """Return how workers wait for bytes; None unless the loop waits for workers that do."""
    if not waits_for_workers(evidence):
        return None
    workers, steady_s = evidence.workers, evidence.loop.steady_s
    own_s = float((workers.cpu_s + workers.blocked_s).sum())
    blocked_s = float(workers.blocked_s.sum()) * (1 - workers.blocked_in("lock"))
    if own_s <= 0 or blocked_s < WAIT_MIN * own_s:
        return None
    remote_share = workers.blocked_in("network", "sleep")
    total = float(sum(fetch.read_bytes for fetch in workers.fetches))
    reads = sum(fetch.reads for fetch in workers.fetches)
    samples = sum(fetch.samples for fetch in workers.fetches)
    measured = None
    if remote_share <= REMOTE_MIN:
        measured = _measured_speedup(evidence, total / steady_s, total / max(1, reads))
    return StorageWaits(
        wait_share=blocked_s / own_s,
        bytes_s=total / steady_s,
        device_bytes_s=sum(fetch.device_bytes for fetch in workers.fetches) / steady_s,
        bytes_per_read=total / reads if reads else 0.0,
        opens_per_sample=sum(fetch.opens for fetch in workers.fetches) / samples if samples else 0.0,
        open_share=workers.blocked_in("open"),
        remote_share=remote_share,
        busiest_disk=_busiest_disk(evidence),
        speedup=None if measured is None else measured[0],
        readers=0 if measured is None else measured[1],
    )


def _busiest_disk(evidence: Evidence) -> float | None:
    disks = [disk for line in evidence.machine.system for disk in line.disks]
    names = {disk.name for disk in disks if disk.read_bytes_s > 0}
    return max((mean([disk.busy for disk in disks if disk.name == name]) for name in names), default=None)


def _measured_speedup(evidence: Evidence, rate: float, read_bytes: float) -> tuple[float, int] | None:
    """Return the throughput of all readers over that of one, and the number of readers, from the reads after the
    run."""
    for line in evidence.recording.storage:
        if line.loader != evidence.loader.loader or line.readers < 2 or not line.cold:
            continue
        patterns = (
            (line.sequential_alone, line.sequential_together),
            (line.random_alone, line.random_together),
        )
        known = [(alone, together) for alone, together in patterns if alone > 0 and together > 0]
        if known and rate > 0:
            alone, together = _matching_pattern(known, rate, sequential=read_bytes >= LARGE_READ_BYTES)
            return together / alone, line.readers
    return None


def _matching_pattern(known: list[tuple[float, float]], rate: float, *, sequential: bool) -> tuple[float, float]:
    """Return the access pattern whose throughput for all readers is nearest to that of the run.

    If both patterns are about as near, large reads are taken as sequential.
    """
    distances = [abs(log(together / rate)) for _, together in known]
    if len(known) == 2 and abs(distances[0] - distances[1]) < SIMILAR_LOG:
        return known[0] if sequential else known[1]
    return known[distances.index(min(distances))]

"""What the rules about storage have in common: how long workers wait for bytes, and how that time scales.

Three mechanisms look alike (workers wait in reads, cores are free) and scale differently with the number of workers
that read at the same time: a full device gives each its share (time ∝ readers), latency is the same for all (time
constant), a thrashing disk gets slower in sum (time grows faster than the readers). The run itself has no contrast
to show: all workers read all the time. So `penstock run` reads once more after the script, with one reader and with
all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Literal

from penstock.core.arrays import mean
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.worker_cpu import behind

LEAST = 0.4
"""Share of the workers' time, waiting for a core left out, that they wait for bytes."""
WaitPattern = Literal["apart", "share", "thrash"]
"""Each gets what one would get alone; all together get what one would; all together get less."""
THRASHES = 0.65
"""All readers together get less than this of what one gets: a quarter less happens by chance."""
LARGE_BYTES = 32 << 10
"""A read of at least this is about bytes, not about seeking."""
ALIKE = 0.4
"""Two rates this close, as a logarithm, are no evidence for either pattern."""
REMOTE = 0.5
"""Of the waiting in the network or a timer: beyond it, what a disk could do does not matter."""


@dataclass(frozen=True)
class StorageWaits:
    """How the workers wait for their data."""

    share: float
    """Of their time."""
    read_bytes: float
    """Per second, all workers."""
    device_bytes: float
    bytes_per_read: float
    opens_per_sample: float
    open_share: float
    """Of the waiting, in opening files and asking about them."""
    remote: float
    """Of the waiting, in the network or a timer."""
    busiest: float | None
    """Share of the time that the busiest disk was busy; None where no disk had traffic of ours."""
    together: float | None
    """What all readers got after the run, over what one got alone; None: nobody looked, or it does not matter."""
    readers: int
    """How many that were."""

    @property
    def manner(self) -> WaitPattern | None:
        """How the storage takes several readers at once."""
        if self.together is None:
            return None
        if self.together <= THRASHES:
            return "thrash"
        return "apart" if self.together >= self.readers**0.5 else "share"

    @property
    def together_words(self) -> str:
        """For people."""
        return f"{self.readers} readers get {self.together:.1f} times what one gets alone"


def storage_waits(evidence: Evidence) -> StorageWaits | None:
    """None unless the loop waits for workers who wait for bytes."""
    return _waiting(evidence) if behind(evidence) else None


def _waiting(evidence: Evidence) -> StorageWaits | None:
    own = float((evidence.workers.cpu_s + evidence.workers.blocked_s).sum())
    locked = evidence.workers.blocked_in("lock")
    blocked = float(evidence.workers.blocked_s.sum()) * (1 - locked)
    if own <= 0 or blocked < LEAST * own:
        return None
    remote = evidence.workers.blocked_in("network", "sleep")
    total = float(sum(fetch.read_bytes for fetch in evidence.workers.fetches))
    reads = sum(fetch.reads for fetch in evidence.workers.fetches)
    samples = sum(fetch.samples for fetch in evidence.workers.fetches)
    profiled = _together(evidence, total / evidence.loop.steady_s, total / max(1, reads)) if remote <= REMOTE else None
    return StorageWaits(
        share=blocked / own,
        read_bytes=total / evidence.loop.steady_s,
        device_bytes=sum(fetch.device_bytes for fetch in evidence.workers.fetches) / evidence.loop.steady_s,
        bytes_per_read=total / reads if reads else 0.0,
        opens_per_sample=sum(fetch.opens for fetch in evidence.workers.fetches) / samples if samples else 0.0,
        open_share=evidence.workers.blocked_in("open"),
        remote=remote,
        busiest=_busiest(evidence),
        together=None if profiled is None else profiled[0],
        readers=0 if profiled is None else profiled[1],
    )


def _busiest(evidence: Evidence) -> float | None:
    names = {disk.name for look in evidence.machine.system for disk in look.disks if disk.read_bytes_s > 0}
    busy = [
        mean([disk.busy for look in evidence.machine.system for disk in look.disks if disk.name == name])
        for name in names
    ]
    return max(busy, default=None)


def _pattern(known: list[tuple[float, float]], rate: float, *, in_row: bool) -> tuple[float, float]:
    """The pattern that gives all together about what the run got; where both do, large reads come in a row."""
    off = [abs(log(together / rate)) for _, together in known]
    if len(known) == 2 and abs(off[0] - off[1]) < ALIKE:
        return known[0] if in_row else known[1]
    return known[off.index(min(off))]


def _together(evidence: Evidence, rate: float, read_bytes: float) -> tuple[float, int] | None:
    """What all got over what one got, and how many all were."""
    for line in evidence.recording.storage:
        if line.loader != evidence.loader.loader or line.readers < 2 or not line.cold:
            continue
        patterns = (
            (line.sequential_alone, line.sequential_together),
            (line.random_alone, line.random_together),
        )
        known = [(alone, together) for alone, together in patterns if alone > 0 and together > 0]
        if known and rate > 0:
            alone, together = _pattern(known, rate, in_row=read_bytes >= LARGE_BYTES)
            return together / alone, line.readers
    return None

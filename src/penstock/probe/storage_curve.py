"""The result of the storage probe: rates over the number of reads in flight, and how such a storage behaves.

What the system claims a storage to be is compared with the measurement; where they disagree, the measurement counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from penstock.storage.kinds import StorageKind
from penstock.storage.mounts import StorageFacts

NEARLY_BEST = 0.95
"""A rate of at least this share of the best is as good: more reads in flight would only cost memory and seeks."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The rates of sequential and of random reads with a given number of reads in flight."""

    in_flight: int
    sequential_mb_per_s: float
    """Adjacent reads of `SEQUENTIAL_BYTES`; 1 MB is 10⁶ bytes."""
    random_reads_per_s: float
    """Reads of one sample's size at random offsets."""

    def __post_init__(self) -> None:
        numbers = (self.in_flight, self.sequential_mb_per_s, self.random_reads_per_s)
        if not all(math.isfinite(number) and number > 0 for number in numbers):
            raise ValueError(f"a point of a curve holds positive numbers, not {numbers}")


@dataclass(frozen=True, slots=True)
class OpenStat:
    """The time to open, stat and close a file.

    The names were listed just before, so a local filesystem has them cached; a network filesystem asks its server again
    at every open. In an object store it is the time of a request about an object.
    """

    median_us: float
    p99_us: float
    opens: int

    def __post_init__(self) -> None:
        if not (0 < self.median_us <= self.p99_us < math.inf and self.opens > 0):
            raise ValueError(f"not a latency: {self.median_us}, {self.p99_us} over {self.opens} opens")


@dataclass(frozen=True, slots=True)
class StorageCurve:
    """The measurement of one storage with one sample size."""

    points: tuple[CurvePoint, ...]
    """One per number of reads in flight, 1 first; larger numbers are missing if the storage was too slow."""
    sample_bytes: int
    open_stat: OpenStat
    cold: bool
    """Whether reads bypassed this machine's page cache; the cache of a server or a host may still have answered."""
    method: str
    """How reads bypassed it: `direct` (O_DIRECT), `dropped` (pages dropped first), `warm` (neither was possible)."""
    probe_bytes: int
    """Total size of the files that were read from."""
    seconds: float
    """Duration of the measurement."""
    measured_unix_s: float

    def __post_init__(self) -> None:
        depths = [point.in_flight for point in self.points]
        if not depths or depths != sorted(set(depths)):
            raise ValueError(f"a curve's points rise by reads in flight, not {depths}")
        if self.sample_bytes <= 0 or self.probe_bytes <= 0 or not math.isfinite(self.measured_unix_s):
            raise ValueError("a curve needs positive sizes and a time")

    def best_sequential(self) -> CurvePoint:
        """Return the point with the highest sequential rate."""
        return max(self.points, key=lambda point: point.sequential_mb_per_s)

    def best_random(self) -> CurvePoint:
        """Return the point with the highest rate of random reads."""
        return max(self.points, key=lambda point: point.random_reads_per_s)

    def in_flight_needed(self) -> int:
        """Return the fewest random reads in flight within 5% of the best: what shuffled training should use."""
        enough = NEARLY_BEST * self.best_random().random_reads_per_s
        return next(point.in_flight for point in self.points if point.random_reads_per_s >= enough)

    def random_mb_per_s(self, point: CurvePoint) -> float:
        """Return the rate of a point's random reads in MB/s."""
        return point.random_reads_per_s * self.sample_bytes / 1e6

    def random_share(self) -> float:
        """Return the best random bandwidth divided by the best sequential bandwidth."""
        return self.random_mb_per_s(self.best_random()) / self.best_sequential().sequential_mb_per_s

    def lost_ms_per_read(self) -> float:
        """Return the time of a random read beyond that of its bytes at the sequential rate, at its best depth."""
        transfer_s = self.sample_bytes / 1e6 / self.best_sequential().sequential_mb_per_s
        return max(0.0, 1 / self.best_random().random_reads_per_s - transfer_s) * 1e3


# -- claim and measurement -----------------------------------------------------------------------------------------

SEEK_MS = 1.5
"""A disk head needs 2 ms and more for a random position even with a full queue; flash and memory a tenth of that."""


class StorageBehaviour(StrEnum):
    """The kind of device that a storage behaves like."""

    FLASH = "flash"
    """Random reads cost little more than their bytes."""
    SPINNING = "spinning disk"
    """Every random read loses `SEEK_MS` or more, which no number of reads in flight hides."""
    STORE = "object store"
    """Every request waits for its first byte; many requests in flight hide that."""
    UNDETERMINED = "undetermined"
    """The reads came from memory, so they show nothing about the storage below."""


def measured_behaviour(storage: StorageFacts, curve: StorageCurve) -> StorageBehaviour:
    """Return how the storage behaves: it seeks if a random read loses `SEEK_MS` or more at its best depth."""
    if storage.kind is StorageKind.OBJECT_STORE:
        return StorageBehaviour.STORE
    if not curve.cold and not storage.kind.in_memory:
        return StorageBehaviour.UNDETERMINED
    return StorageBehaviour.SPINNING if curve.lost_ms_per_read() >= SEEK_MS else StorageBehaviour.FLASH


def claimed_behaviour(storage: StorageFacts) -> StorageBehaviour:
    """Return how the storage should behave by its kind and the kernel's rotational flag."""
    if storage.kind in (StorageKind.NVME, StorageKind.SSD) or storage.kind.in_memory:
        return StorageBehaviour.FLASH
    if storage.rotational is None:
        return StorageBehaviour.UNDETERMINED
    return StorageBehaviour.SPINNING if storage.rotational else StorageBehaviour.FLASH


def explain_behaviour(storage: StorageFacts, curve: StorageCurve) -> str:
    """Return a sentence on the measured behaviour, and whether the system's claim agrees with it."""
    measured, claimed = measured_behaviour(storage, curve), claimed_behaviour(storage)
    if measured is StorageBehaviour.STORE:
        return explain_store(curve)
    if measured is StorageBehaviour.UNDETERMINED:
        return "Undetermined: the reads could not be made cold, so they measured memory, not the storage."
    lost = f"a random read costs {curve.lost_ms_per_read():.1f} ms more than its bytes"
    if claimed is StorageBehaviour.UNDETERMINED:
        return f"Acts like {_with_article(measured)}: {lost}."
    if measured is claimed:
        return f"Acts like {_with_article(measured)}, as the system says: {lost}."
    rule = f"from {SEEK_MS} ms on it would be a spinning disk's"
    if measured is StorageBehaviour.SPINNING:
        rule = f"under {SEEK_MS} ms it would be flash's"
    return f"The system says {claimed}, the measurement {measured}: {lost} ({rule}). The measurement is believed."


def explain_store(curve: StorageCurve) -> str:
    """Return a sentence on an object store: whether more requests in flight or only fewer bytes make it faster."""
    alone, best = curve.points[0], curve.best_sequential()
    if len(curve.points) == 1:
        return f"Undetermined: {alone.sequential_mb_per_s:.0f} MB/s with one request at a time, and no more were tried."
    least = NEARLY_BEST * best.sequential_mb_per_s
    enough = next(point for point in curve.points if point.sequential_mb_per_s >= least)
    gain = f"one request at a time brings {alone.sequential_mb_per_s:.0f} MB/s"
    if enough is not alone:
        gain += f", {enough.in_flight} at once {enough.sequential_mb_per_s:.0f}"
    if enough is curve.points[-1]:
        return f"Latency-bound as far as was tried: {gain}. More requests in flight bring more."
    return f"Bandwidth-bound from there on: {gain}. Only fewer bytes help: a cache in front, or smaller codecs."


def _with_article(behaviour: StorageBehaviour) -> str:
    return "a spinning disk" if behaviour is StorageBehaviour.SPINNING else "flash"

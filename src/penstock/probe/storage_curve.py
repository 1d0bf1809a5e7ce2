"""What a storage can do, as measured: rates over the number of reads in flight."""

from __future__ import annotations

import math
import platform
import time
from dataclasses import dataclass

from penstock.core import user_cache as kept
from penstock.storage.mounts import StorageFacts

WITHIN = 0.95
"""A point this close to the best is as good: more in flight would only cost memory and seeks."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Both rates with so many reads in flight at once."""

    in_flight: int
    sequential_mb_per_s: float
    """Neighbouring reads of `SEQUENTIAL_BYTES`; 1 MB is 10⁶ bytes."""
    random_reads_per_s: float
    """Reads of one sample's size at random places."""

    def __post_init__(self) -> None:
        numbers = (self.in_flight, self.sequential_mb_per_s, self.random_reads_per_s)
        if not all(math.isfinite(number) and number > 0 for number in numbers):
            raise ValueError(f"a point of a curve holds positive numbers, not {numbers}")


@dataclass(frozen=True, slots=True)
class OpenStat:
    """Time to open, stat and close a file. Names were listed just before, so a local system knows them
    already; a network filesystem asks its server again at every open."""

    median_us: float
    p99_us: float
    opens: int

    def __post_init__(self) -> None:
        if not (0 < self.median_us <= self.p99_us < math.inf and self.opens > 0):
            raise ValueError(f"not a latency: {self.median_us}, {self.p99_us} over {self.opens} opens")


@dataclass(frozen=True, slots=True)
class StorageCurve:
    """The measurement of one storage at one size of sample."""

    points: tuple[CurvePoint, ...]
    """By reads in flight, 1 first. Ends early where the storage was too slow for the time allowed."""
    sample_bytes: int
    open_stat: OpenStat
    cold: bool
    """Whether reads went past this machine's page cache. A server's or a host's cache may still answer."""
    method: str
    """How: `direct` (O_DIRECT), `dropped` (pages dropped first), `warm` (neither was possible)."""
    probe_bytes: int
    """Bytes of the files that were read from."""
    seconds: float
    """What the measurement took."""
    measured_unix_s: float

    def __post_init__(self) -> None:
        depths = [point.in_flight for point in self.points]
        if not depths or depths != sorted(set(depths)):
            raise ValueError(f"a curve's points rise by reads in flight, not {depths}")
        if self.sample_bytes <= 0 or self.probe_bytes <= 0 or not math.isfinite(self.measured_unix_s):
            raise ValueError("a curve needs positive sizes and a time")

    def best_sequential(self) -> CurvePoint:
        """The point with the highest sequential rate."""
        return max(self.points, key=lambda point: point.sequential_mb_per_s)

    def best_random(self) -> CurvePoint:
        """The point with the highest rate of random reads."""
        return max(self.points, key=lambda point: point.random_reads_per_s)

    def in_flight_needed(self) -> int:
        """The fewest random reads in flight within 5% of the best: what shuffled training should use."""
        enough = WITHIN * self.best_random().random_reads_per_s
        return next(point.in_flight for point in self.points if point.random_reads_per_s >= enough)

    def random_mb_per_s(self, point: CurvePoint) -> float:
        """The same random reads, in bytes."""
        return point.random_reads_per_s * self.sample_bytes / 1e6

    def random_share(self) -> float:
        """Best random over best sequential bandwidth: what shuffling single samples leaves of the speed."""
        return self.random_mb_per_s(self.best_random()) / self.best_sequential().sequential_mb_per_s

    def lost_ms_per_read(self) -> float:
        """Time a random read costs above its bytes at the sequential rate, at its best number in flight."""
        transfer_s = self.sample_bytes / 1e6 / self.best_sequential().sequential_mb_per_s
        return max(0.0, 1 / self.best_random().random_reads_per_s - transfer_s) * 1e3


VERSION = 1
"""Raised whenever the way of measuring changes: older curves are then not comparable."""
MAX_AGE_S = 7 * 86400.0
_FILE_BYTES_MAX = 64 << 10
_FOLDER = "storage"


@dataclass(frozen=True, slots=True)
class CurveKey:
    """What a curve holds for. The machine belongs to it: a home may be shared by many of them."""

    version: int
    machine: str
    device: str
    filesystem: str
    sample_bytes: int


@dataclass(frozen=True, slots=True)
class _CurveRecord:
    key: CurveKey
    curve: StorageCurve


def key_of(storage: StorageFacts, sample_bytes: int) -> CurveKey:
    """Numbers of anonymous devices change with every mount: there the source and the place stand in."""
    anonymous = not storage.device or storage.device.startswith("0:")
    device = f"{storage.source} on {storage.mount_point}" if anonymous else f"{storage.device} {storage.source}"
    return CurveKey(VERSION, platform.node(), device, storage.filesystem, sample_bytes)


def load(key: CurveKey) -> StorageCurve | None:
    """The kept curve, or None where there is none, or it is old, corrupt or of something else."""
    record = kept.load_record(_FOLDER, key, _CurveRecord, _FILE_BYTES_MAX)
    if record is None:
        return None
    age_s = time.time() - record.curve.measured_unix_s
    usable = record.curve.sample_bytes == key.sample_bytes and 0 <= age_s <= MAX_AGE_S
    return record.curve if usable else None


def store(key: CurveKey, curve: StorageCurve) -> None:
    """Keep a curve."""
    kept.store_record(_FOLDER, _CurveRecord(key, curve))

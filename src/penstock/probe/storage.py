"""The storage probe: measures in a few seconds what a storage delivers when the page cache is bypassed.

The system's own flags (in /sys) are often wrong about the storage, so the reads of a probe decide. A curve is cached
for a week, since a measurement takes seconds and occupies the storage.
"""

from __future__ import annotations

import mmap
import os
import platform
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from penstock.core import user_cache
from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.errors import SettingError, StorageError
from penstock.probe.storage_curve import CurvePoint, OpenStat, StorageCurve
from penstock.probe.storage_files import (
    ProbePool,
    ReadTarget,
    choose_objects,
    identify_url,
    open_objects,
    probe_pool,
    survey_path,
)
from penstock.storage.mounts import StorageFacts, identify_storage
from penstock.storage.object_store.url import is_remote
from penstock.storage.page_cache import ALIGNMENT, ReadMethod
from penstock.storage.paths import is_shard_name

IN_FLIGHT = (1, 2, 4, 8, 16, 32)
"""Numbers of reads in flight that are measured."""
SEQUENTIAL_BYTES = 4 << 20
"""Size of a sequential read: one block of a shard as the loader reads it."""
SAMPLE_BYTES = 512 << 10
SAMPLE_BYTES_MAX = 32 << 20
"""32 reads of this size in flight hold 1 GiB of memory."""
BUDGET_S = 6.0
STORE_BYTES = 4 << 30
"""Most bytes to read from a bucket: they may cost money, and a fast store would deliver many in the budget."""
_READS_MAX = 4096
_OPENS_MAX = 512


def probe_storage(
    path: str | Path,
    *,
    sample_bytes: int = SAMPLE_BYTES,
    budget_s: float = BUDGET_S,
    refresh: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> StorageCurve:
    """Return the curve of the storage under a path or URL: a cached one of the last week, or a new measurement.

    The next power of two of `sample_bytes` is measured (`curve.sample_bytes`), so that sizes can share a curve.
    """
    size = size_class(sample_bytes)
    storage = storage_facts(path)
    key = curve_key(storage, size)
    cached = None if refresh else load_curve(key)
    if cached is not None:
        return cached
    if is_remote(path):
        curve = measure_store(os.fspath(path), size, budget_s, clock)
    else:
        curve = measure_files(storage, size, budget_s, clock)
    store_curve(key, curve)
    return curve


def storage_facts(path: str | Path) -> StorageFacts:
    """Return what is known about the storage of a path or URL without reading from it."""
    return identify_url(os.fspath(path)) if is_remote(path) else identify_storage(path)


def size_class(sample_bytes: int) -> int:
    """Return the power of two at or above a sample's size; at least one page."""
    if not 0 < sample_bytes <= SAMPLE_BYTES_MAX:
        raise SettingError(
            f"a sample of {sample_bytes} bytes cannot be probed", advice=f"Use 1 to {SAMPLE_BYTES_MAX} bytes"
        )
    return max(ALIGNMENT, 1 << (sample_bytes - 1).bit_length())


def measure_files(storage: StorageFacts, sample_bytes: int, budget_s: float, clock: Clock) -> StorageCurve:
    """Measure a filesystem now. Finding and writing files get a third of the budget, the reads the rest."""
    start = clock.now()
    try:
        survey = survey_path(storage.path, start + budget_s / 12, clock)
        open_stat = measure_open_stat(survey.names or [storage.path], clock.now() + budget_s / 12, clock)
        with probe_pool(storage, survey, start + budget_s / 3, clock) as pool:
            run = _CurveRun(pool, sample_bytes, start + budget_s, clock)
            points = tuple(run.points())
            method = pool.files[0].method
            probe_bytes = pool.size_bytes
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"cannot measure: {error}", shard=str(storage.path), stage="probe") from error
    return _curve(points, sample_bytes, open_stat, method, probe_bytes, clock.now() - start)


def measure_store(url: str, sample_bytes: int, budget_s: float, clock: Clock) -> StorageCurve:
    """Measure a bucket now: requests about objects stand for opening files, requests for ranges for reads.

    Listing and opening objects come first and use up the budget too: a store that is slow there has fewer points.
    """
    start = clock.now()
    objects, open_times_s = open_objects(
        choose_objects(url, is_shard_name), SEQUENTIAL_BYTES, start + budget_s / 3, clock.now
    )
    pool = ProbePool(objects)
    cell_bytes = STORE_BYTES // (2 * len(IN_FLIGHT))
    points = tuple(_CurveRun(pool, sample_bytes, start + budget_s, clock, cell_bytes).points())
    open_stat = _open_stat(open_times_s)
    return _curve(points, sample_bytes, open_stat, ReadMethod.REQUESTS, pool.size_bytes, clock.now() - start)


def _curve(
    points: tuple[CurvePoint, ...],
    sample_bytes: int,
    open_stat: OpenStat,
    method: ReadMethod,
    probe_bytes: int,
    seconds: float,
) -> StorageCurve:
    return StorageCurve(
        points=points,
        sample_bytes=sample_bytes,
        open_stat=open_stat,
        cold=method is not ReadMethod.WARM,
        method=method,
        probe_bytes=probe_bytes,
        seconds=seconds,
        measured_unix_s=time.time(),
    )


@dataclass(slots=True)
class _CurveRun:
    """The measurement of one curve, cell by cell.

    A cell is one rate (sequential or random) at one number of reads in flight. Each cell gets an equal part of the
    time that is left.
    """

    pool: ProbePool
    sample_bytes: int
    deadline_s: float
    clock: Clock
    cell_bytes: int | None = None
    """Most bytes that a cell reads, although every reader reads once at least; None: as many as the time allows."""
    rng: random.Random = field(default_factory=random.Random)
    buffers: list[mmap.mmap] = field(default_factory=list)

    def points(self) -> Iterator[CurvePoint]:
        """Yield points until the next one would take longer than the time that is left allows."""
        sequential = rand = 0.0  # bytes/s of the previous point
        for done, in_flight in enumerate(IN_FLIGHT):
            cells_left = 2 * (len(IN_FLIGHT) - done)
            if done and not all(
                self._affordable(in_flight, length, rate, cells_left)
                for length, rate in ((SEQUENTIAL_BYTES, sequential), (self.sample_bytes, rand))
            ):
                return
            sequential = self._measure_cell(SEQUENTIAL_BYTES, in_flight, cells_left, sequential=True)
            rand = self._measure_cell(self.sample_bytes, in_flight, cells_left - 1, sequential=False)
            yield CurvePoint(in_flight, sequential / 1e6, rand / self.sample_bytes)

    def _affordable(self, in_flight: int, length: int, rate: float, cells_left: int) -> bool:
        """Return whether every reader can read once in time, if the storage is no faster than with fewer readers."""
        slots = sum(file.size_bytes // length for file in self.pool.files)
        return slots >= in_flight and in_flight * length / rate <= 2 * self._cell_s(cells_left)

    def _cell_s(self, cells_left: int) -> float:
        return max(0.0, self.deadline_s - self.clock.now()) / cells_left

    def _measure_cell(self, length: int, in_flight: int, cells_left: int, *, sequential: bool) -> float:
        """Return the bytes per second of one kind of read."""
        for file in self.pool.files:
            file.drop(random=not sequential)
        while len(self.buffers) < in_flight:
            size = max(SEQUENTIAL_BYTES, self.sample_bytes)
            self.buffers.append(mmap.mmap(-1, size))
            self.buffers[-1].write(bytes(size))  # takes the page faults before the timing
        targets = self.pool.targets(length, self._reads(length, in_flight), self.rng, sequential=sequential)
        stop_s = self.clock.now() + self._cell_s(cells_left)
        return read_rate(targets, length, self.buffers[:in_flight], stop_s, self.clock)

    def _reads(self, length: int, in_flight: int) -> int:
        """Return the most reads of a cell: a multiple of the readers, so that all of them end at the same time."""
        if self.cell_bytes is None:
            return _READS_MAX
        return in_flight * max(1, min(_READS_MAX, self.cell_bytes // length) // in_flight)


def read_rate(
    targets: Sequence[ReadTarget], length: int, buffers: Sequence[mmap.mmap], stop_s: float, clock: Clock
) -> float:
    """Return the bytes per second with one reader thread per buffer, until all targets are read or `stop_s` is over."""
    lock = threading.Lock()
    pending = iter(targets)

    def read_targets(buffer: mmap.mmap) -> int:
        count = 0
        while True:
            with lock:
                target = next(pending, None)
            if target is None:
                return count
            file, offset = target
            count += file.read_into(buffer, offset, length)
            if clock.now() >= stop_s:
                return count

    start = clock.now()
    with ThreadPoolExecutor(len(buffers)) as readers:
        total = sum(readers.map(read_targets, buffers))
    if total == 0:
        raise OSError("the files to read from are empty now")
    return total / max(clock.now() - start, 1e-9)


def measure_open_stat(names: Sequence[Path], stop_s: float, clock: Clock) -> OpenStat:
    """Time opening, statting and closing the files in turn; a folder can stand in where there are no files."""
    times_s: list[float] = []
    for number in range(_OPENS_MAX):
        before = clock.now()
        fd = os.open(names[number % len(names)], os.O_RDONLY)
        try:
            os.fstat(fd)
        finally:
            os.close(fd)
        times_s.append(clock.now() - before)
        if clock.now() >= stop_s:
            break
    return _open_stat(times_s)


def _open_stat(times_s: list[float]) -> OpenStat:
    times_s = sorted(times_s)
    median, p99 = times_s[len(times_s) // 2], times_s[(len(times_s) * 99) // 100]
    return OpenStat(max(median, 1e-9) * 1e6, max(p99, 1e-9) * 1e6, len(times_s))


# -- the cache of curves -------------------------------------------------------------------------------------------

CACHE_VERSION = 1
"""Raised whenever the method of measuring changes: older curves are not comparable then."""
MAX_AGE_S = 7 * 86400.0
_FILE_BYTES_MAX = 64 << 10
_FOLDER = "storage"


@dataclass(frozen=True, slots=True)
class CurveKey:
    """Identifies what a curve was measured on. The machine is part of it because machines may share a home."""

    version: int
    machine: str
    device: str
    filesystem: str
    sample_bytes: int


@dataclass(frozen=True, slots=True)
class _CurveRecord:
    key: CurveKey
    curve: StorageCurve


def curve_key(storage: StorageFacts, sample_bytes: int) -> CurveKey:
    """Return the cache key; source and mount point replace the number of an anonymous device, which changes."""
    anonymous = not storage.device or storage.device.startswith("0:")
    device = f"{storage.source} on {storage.mount_point}" if anonymous else f"{storage.device} {storage.source}"
    return CurveKey(CACHE_VERSION, platform.node(), device, storage.filesystem, sample_bytes)


def load_curve(key: CurveKey) -> StorageCurve | None:
    """Return the cached curve, or None if there is none, or it is old, corrupt or for another key."""
    record = user_cache.load_record(_FOLDER, key, _CurveRecord, _FILE_BYTES_MAX)
    if record is None:
        return None
    age_s = time.time() - record.curve.measured_unix_s
    usable = record.curve.sample_bytes == key.sample_bytes and 0 <= age_s <= MAX_AGE_S
    return record.curve if usable else None


def store_curve(key: CurveKey, curve: StorageCurve) -> None:
    """Write a curve to the cache."""
    user_cache.store_record(_FOLDER, _CurveRecord(key, curve))

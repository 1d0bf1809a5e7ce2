"""What a storage can do, measured cold in a few seconds: the flag in /sys says one thing, reads another."""

from __future__ import annotations

import mmap
import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.errors import SettingError, StorageError
from penstock.probe import storage_curve as curvecache
from penstock.probe.storage_curve import CurvePoint, OpenStat, StorageCurve
from penstock.probe.storage_files import ProbePool, Target, opened, probe_pool, probed_objects, storage_of, survey
from penstock.storage.mounts import StorageFacts, identify_storage
from penstock.storage.object_store.url import is_remote
from penstock.storage.page_cache import ALIGNMENT, ReadMethod
from penstock.storage.paths import is_shard_name

IN_FLIGHT = (1, 2, 4, 8, 16, 32)
SEQUENTIAL_BYTES = 4 << 20
"""One block of a shard as the loader reads it."""
SAMPLE_BYTES = 512 << 10
SAMPLE_BYTES_MAX = 32 << 20
"""32 reads of this size in flight hold 1 GiB of memory."""
BUDGET_S = 6.0
STORE_BYTES = 4 << 30
"""Read of a bucket at most: there bytes may cost money, and a fast one would give many in the time."""
_READS_MAX = 4096
_OPENS_MAX = 512


def probe(
    path: str | Path,
    *,
    sample_bytes: int = SAMPLE_BYTES,
    budget_s: float = BUDGET_S,
    refresh: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> StorageCurve:
    """The curve of the storage under `path`: kept from an earlier run (a week at most), else measured.

    Sizes are measured at the next power of two, `curve.sample_bytes`, so that curves can be shared.
    """
    size = size_class(sample_bytes)
    storage = storage_under(path)
    key = curvecache.key_of(storage, size)
    kept = None if refresh else curvecache.load(key)
    if kept is not None:
        return kept
    if is_remote(path):
        curve = measure_store(os.fspath(path), size, budget_s, clock)
    else:
        curve = measure(storage, size, budget_s, clock)
    curvecache.store(key, curve)
    return curve


def storage_under(path: str | Path) -> StorageFacts:
    """What a path lies on, or a URL in."""
    return storage_of(os.fspath(path)) if is_remote(path) else identify_storage(path)


def size_class(sample_bytes: int) -> int:
    """The power of two at or above a sample's size, one page at least."""
    if not 0 < sample_bytes <= SAMPLE_BYTES_MAX:
        raise SettingError(
            f"a sample of {sample_bytes} bytes cannot be probed", advice=f"Use 1 to {SAMPLE_BYTES_MAX} bytes"
        )
    return max(ALIGNMENT, 1 << (sample_bytes - 1).bit_length())


def measure(storage: StorageFacts, sample_bytes: int, budget_s: float, clock: Clock) -> StorageCurve:
    """Measure now. The budget is shared out: looking and writing get a third, the cells the rest."""
    start = clock.now()
    try:
        found = survey(storage.path, start + budget_s / 12, clock)
        open_stat = measure_open_stat(found.names or [storage.path], clock.now() + budget_s / 12, clock)
        with probe_pool(storage, found, start + budget_s / 3, clock) as pool:
            run = _CurveRun(pool, sample_bytes, start + budget_s, clock)
            points = tuple(run.points())
            method = pool.files[0].method
            probe_bytes = pool.size_bytes
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"cannot measure: {error}", shard=str(storage.path), stage="probe") from error
    return _curve(points, sample_bytes, open_stat, method, probe_bytes, clock.now() - start)


def measure_store(path: str, sample_bytes: int, budget_s: float, clock: Clock) -> StorageCurve:
    """The same of a bucket: a request to look at an object stands for opening it, requests in flight for reads.

    Listing and looking come first and count, but for one object: a store that is slow there has fewer points.
    """
    start = clock.now()
    objects, taken_s = opened(probed_objects(path, is_shard_name), SEQUENTIAL_BYTES, start + budget_s / 3, clock.now)
    pool = ProbePool(objects)
    cell_bytes = STORE_BYTES // (2 * len(IN_FLIGHT))
    points = tuple(_CurveRun(pool, sample_bytes, start + budget_s, clock, cell_bytes).points())
    return _curve(points, sample_bytes, _open_stat(taken_s), ReadMethod.REQUESTS, pool.size_bytes, clock.now() - start)


def _curve(
    points: tuple[CurvePoint, ...],
    sample_bytes: int,
    open_stat: OpenStat,
    method: ReadMethod,
    read: int,
    seconds: float,
) -> StorageCurve:
    return StorageCurve(
        points=points,
        sample_bytes=sample_bytes,
        open_stat=open_stat,
        cold=method is not ReadMethod.WARM,
        method=method,
        probe_bytes=read,
        seconds=seconds,
        measured_unix_s=time.time(),
    )


@dataclass(slots=True)
class _CurveRun:
    """The cells of one curve, each with its fair slice of the time that is left."""

    pool: ProbePool
    sample_bytes: int
    deadline_s: float
    clock: Clock
    cell_bytes: int | None = None
    """Read by one of them at most, but once by every reader; None: as many as the time allows."""
    rng: random.Random = field(default_factory=random.Random)
    buffers: list[mmap.mmap] = field(default_factory=list)

    def points(self) -> Iterator[CurvePoint]:
        """Point after point, until the next one would take longer than the time that is left allows."""
        sequential = rand = 0.0  # bytes/s of the point before
        for done, in_flight in enumerate(IN_FLIGHT):
            cells_left = 2 * (len(IN_FLIGHT) - done)
            if done and not all(
                self._affordable(in_flight, length, rate, cells_left)
                for length, rate in ((SEQUENTIAL_BYTES, sequential), (self.sample_bytes, rand))
            ):
                return
            sequential = self._cell(SEQUENTIAL_BYTES, in_flight, cells_left, sequential=True)
            rand = self._cell(self.sample_bytes, in_flight, cells_left - 1, sequential=False)
            yield CurvePoint(in_flight, sequential / 1e6, rand / self.sample_bytes)

    def _affordable(self, in_flight: int, length: int, rate: float, cells_left: int) -> bool:
        """Every reader reads once at least; at worst the storage is no faster than with fewer of them."""
        slots = sum(file.size_bytes // length for file in self.pool.files)
        return slots >= in_flight and in_flight * length / rate <= 2 * self._slice_s(cells_left)

    def _slice_s(self, cells_left: int) -> float:
        return max(0.0, self.deadline_s - self.clock.now()) / cells_left

    def _cell(self, length: int, in_flight: int, cells_left: int, *, sequential: bool) -> float:
        """Bytes per second of one kind of read."""
        for file in self.pool.files:
            file.drop(random=not sequential)
        while len(self.buffers) < in_flight:
            size = max(SEQUENTIAL_BYTES, self.sample_bytes)
            self.buffers.append(mmap.mmap(-1, size))
            self.buffers[-1].write(bytes(size))  # page faults now, not in the measured time
        targets = self.pool.targets(length, self._reads(length, in_flight), self.rng, sequential=sequential)
        stop_s = self.clock.now() + self._slice_s(cells_left)
        return read_rate(targets, length, self.buffers[:in_flight], stop_s, self.clock)

    def _reads(self, length: int, in_flight: int) -> int:
        """As many for each reader: where all read their last together, nobody's end is measured."""
        if self.cell_bytes is None:
            return _READS_MAX
        return in_flight * max(1, min(_READS_MAX, self.cell_bytes // length) // in_flight)


def read_rate(
    targets: Sequence[Target], length: int, buffers: Sequence[mmap.mmap], stop_s: float, clock: Clock
) -> float:
    """Bytes per second with one reader per buffer, until the targets are all read or `stop_s` has come."""
    lock = threading.Lock()
    waiting = iter(targets)

    def reader(buffer: mmap.mmap) -> int:
        got = 0
        while True:
            with lock:
                target = next(waiting, None)
            if target is None:
                return got
            file, offset = target
            got += file.read_into(buffer, offset, length)
            if clock.now() >= stop_s:
                return got

    start = clock.now()
    with ThreadPoolExecutor(len(buffers)) as readers:
        total = sum(readers.map(reader, buffers))
    if total == 0:
        raise OSError("the files to read from are empty now")
    return total / max(clock.now() - start, 1e-9)


def measure_open_stat(names: Sequence[Path], stop_s: float, clock: Clock) -> OpenStat:
    """Open, stat and close files in turn; a folder's own name serves where there are none."""
    taken_s: list[float] = []
    for turn in range(_OPENS_MAX):
        before = clock.now()
        fd = os.open(names[turn % len(names)], os.O_RDONLY)
        try:
            os.fstat(fd)
        finally:
            os.close(fd)
        taken_s.append(clock.now() - before)
        if clock.now() >= stop_s:
            break
    return _open_stat(taken_s)


def _open_stat(taken_s: list[float]) -> OpenStat:
    taken_s = sorted(taken_s)
    median, p99 = taken_s[len(taken_s) // 2], taken_s[(len(taken_s) * 99) // 100]
    return OpenStat(max(median, 1e-9) * 1e6, max(p99, 1e-9) * 1e6, len(taken_s))

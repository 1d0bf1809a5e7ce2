"""The disk gives less than the training could take: bytes, reads, one head for many readers, files to open."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from tests.support.faults import cgroup
from tests.support.faults.apart import apart
from tests.support.faults.fault import Case, Training, fault
from tests.support.faults.material import BATCH, Pictures, loader, noise_file, picture_files

PIECE_BYTES = 64 << 10
LARGE_BYTES = 128 << 10
SMALL_BYTES = 4 << 10
SMALL_READS = 4
SHARDS = 4
TINY_FILES = 256


def no_throttle(folder: Path) -> str | None:
    """Whether the kernel lets us slow the disk under the folder."""
    if sys.platform != "linux":
        return "only Linux limits a disk for one process"
    with suppress(OSError):
        cgroup.disk_number(folder)
        return cgroup.missing("blkio", "blkio.throttle.read_bps_device")
    return f"{folder} does not lie on a block device"


def no_fuse(folder: Path) -> str | None:
    """Whether a filesystem of our own can be mounted."""
    if not os.access("/dev/fuse", os.W_OK) or os.geteuid() != 0:
        return "mounting needs root and /dev/fuse"
    try:
        importlib.import_module("mfusepy")
    except (ImportError, OSError) as error:  # it looks for the system's library as it is imported
        return f"mfusepy does not work here: {error}"
    return None


@fault(expect="storage_bandwidth", missing=no_throttle)
def slow_disk(case: Case) -> Iterator[Training]:
    """The disk gives fewer bytes per second than the training takes; nothing is in the page cache."""
    rate = case.pick(mild=60_000_000, severe=30_000_000, removed=0)
    with _throttled(case, "blkio.throttle.read_bps_device", rate):
        yield Training(loader=loader(_cold(case, LARGE_BYTES, 1)))


@fault(expect="random_access", missing=no_throttle)
def few_reads(case: Case) -> Iterator[Training]:
    """Small reads all over a large file, on a disk that does few of them per second."""
    rate = case.pick(mild=1800, severe=900, removed=0)
    with _throttled(case, "blkio.throttle.read_iops_device", rate):
        yield Training(loader=loader(_cold(case, SMALL_BYTES, SMALL_READS)))


@fault(expect="reader_thrash", missing=no_fuse)
def many_readers(case: Case) -> Iterator[Training]:
    """Several workers read a shard each from a disk with one head, which one of them alone would not tire."""
    seek_s = case.level(mild=0.0015, severe=0.004)
    shards = [noise_file(case.folder / "shards", 4 << 20, f"shard{number}") for number in range(SHARDS)]
    with seek_disk(shards[0].parent, seek_s=seek_s) as disk:
        dataset = Streams(tuple(disk / shard.name for shard in shards), case.steps * BATCH)
        yield Training(loader=loader(dataset, num_workers=1 if case.removed else SHARDS))


@fault(expect="small_files", missing=no_fuse)
def tiny_files(case: Case) -> Iterator[Training]:
    """A file per sample, and opening one takes longer than reading it."""
    files = picture_files(case.folder, TINY_FILES, 96)
    with seek_disk(files[0].parent, open_s=case.pick(mild=0.002, severe=0.006, removed=0.0)) as disk:
        yield Training(loader=loader(Pictures(tuple(disk / file.name for file in files), case.steps * BATCH)))


@contextmanager
def seek_disk(source: Path, *, seek_s: float = 0.0, open_s: float = 0.0, bytes_per_s: float = 200e6) -> Iterator[Path]:
    """The files of a folder again, on a disk with one head (FUSE); nothing of it is cached."""
    with (
        tempfile.TemporaryDirectory(prefix=f"penstock-disk-{os.getpid()}-") as mountpoint,
        apart("seekdisk", str(source), mountpoint, str(seek_s), str(open_s), str(bytes_per_s)),
    ):
        yield Path(mountpoint)


@dataclass(frozen=True, slots=True)
class Extents:
    """Map-style over one large file: a sample is some pieces of it, next to each other or scattered."""

    file: Path
    offsets: NDArray[np.int64]
    """(samples, pieces)"""
    size_bytes: int

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        opened = os.open(self.file, os.O_RDONLY)
        try:
            if len(self.offsets[index]) > 1:
                os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_RANDOM)
            pieces = [os.pread(opened, self.size_bytes, int(offset)) for offset in self.offsets[index]]
        finally:
            os.close(opened)
        return np.frombuffer(bytearray(b"".join(piece[:1024] for piece in pieces)), np.uint8)


class Streams(IterableDataset[NDArray[np.uint8]]):
    """Each worker reads its shards from front to back, again from the front at the end, until it has its share."""

    def __init__(self, shards: tuple[Path, ...], samples: int) -> None:
        self._shards = shards
        self._samples = samples

    def __iter__(self) -> Iterator[NDArray[np.uint8]]:
        """One sample, one piece."""
        info = get_worker_info()
        number, workers = (info.id, info.num_workers) if info else (0, 1)
        left = self._samples // workers
        while True:
            for shard in self._shards[number::workers]:
                with shard.open("rb", buffering=0) as file:
                    while piece := file.read(PIECE_BYTES):
                        if left == 0:
                            return
                        left -= 1
                        yield np.frombuffer(bytearray(piece[:1024]), np.uint8)


def _cold(case: Case, size_bytes: int, pieces: int) -> Extents:
    """No piece is read twice, and none is in the page cache."""
    count = case.steps * BATCH * pieces
    file = noise_file(case.folder, max(count * size_bytes, 64 << 20))
    places = np.arange(file.stat().st_size // size_bytes)
    if pieces > 1:
        np.random.default_rng(case.seed).shuffle(places)
    forget(file)
    return Extents(file, (places[:count] * size_bytes).reshape(-1, pieces), size_bytes)


def forget(file: Path) -> None:
    """Out of the page cache with it."""
    with file.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def _throttled(case: Case, limit: str, rate: int) -> Iterator[None]:
    with ExitStack() as stack:
        if rate:
            stack.enter_context(cgroup.limited("blkio", {limit: f"{cgroup.disk_number(case.folder)} {rate}"}))
        yield

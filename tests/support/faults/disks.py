"""Faults in which the disk is too slow: in bytes, in reads per second, for several readers, or in opening files."""

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
from tests.support.faults.detached_process import detached_process
from tests.support.faults.fault import Case, Training, fault
from tests.support.faults.image_dataset import BATCH, ImageDataset, image_files, loader, noise_file

PIECE_BYTES = 64 << 10
"""Bytes of a sample of `many_readers`."""
LARGE_BYTES = 128 << 10
"""Bytes of a sample of `slow_disk`."""
SMALL_BYTES = 4 << 10
SMALL_READS = 4
"""Reads per sample of `few_reads`, of SMALL_BYTES each."""
SHARDS = 4
TINY_FILES = 256
"""Number of files of `tiny_files`."""


def no_throttle(folder: Path) -> str | None:
    """Return why the disk under the folder cannot be slowed down, or None if it can."""
    if sys.platform != "linux":
        return "only Linux limits a disk for one process"
    with suppress(OSError):
        cgroup.disk_number(folder)
        return cgroup.missing("blkio", "blkio.throttle.read_bps_device")
    return f"{folder} does not lie on a block device"


def no_fuse(folder: Path) -> str | None:
    """Return why a FUSE filesystem cannot be mounted, or None if it can."""
    if not os.access("/dev/fuse", os.W_OK) or os.geteuid() != 0:
        return "mounting needs root and /dev/fuse"
    try:
        importlib.import_module("mfusepy")
    except (ImportError, OSError) as error:  # importing it loads the system's library
        return f"mfusepy does not work here: {error}"
    return None


@fault(expect="storage_bandwidth", missing=no_throttle)
def slow_disk(case: Case) -> Iterator[Training]:
    """The disk delivers fewer bytes per second than the training needs, and nothing is in the page cache."""
    rate = case.pick(mild=60_000_000, severe=30_000_000, removed=0)
    with _throttled(case, "blkio.throttle.read_bps_device", rate):
        yield Training(loader=loader(_uncached_regions(case, LARGE_BYTES, 1)))


@fault(expect="random_access", missing=no_throttle)
def few_reads(case: Case) -> Iterator[Training]:
    """Samples are small reads at random offsets of a large file, on a disk that does few reads per second."""
    rate = case.pick(mild=1800, severe=900, removed=0)
    with _throttled(case, "blkio.throttle.read_iops_device", rate):
        yield Training(loader=loader(_uncached_regions(case, SMALL_BYTES, SMALL_READS)))


@fault(expect="reader_thrash", missing=no_fuse)
def many_readers(case: Case) -> Iterator[Training]:
    """Several workers read one shard each from a disk with one head, which is fast enough for one of them alone."""
    seek_s = case.level(mild=0.0015, severe=0.004)
    shards = [noise_file(case.folder / "shards", 4 << 20, f"shard{number}") for number in range(SHARDS)]
    with seek_disk(shards[0].parent, seek_s=seek_s) as disk:
        dataset = ShardStreams(tuple(disk / shard.name for shard in shards), case.steps * BATCH)
        yield Training(loader=loader(dataset, num_workers=1 if case.removed else SHARDS))


@fault(expect="small_files", missing=no_fuse)
def tiny_files(case: Case) -> Iterator[Training]:
    """Each sample is a file of its own, and opening it takes longer than reading it."""
    files = image_files(case.folder, TINY_FILES, 96)
    with seek_disk(files[0].parent, open_s=case.pick(mild=0.002, severe=0.006, removed=0.0)) as disk:
        yield Training(loader=loader(ImageDataset(tuple(disk / file.name for file in files), case.steps * BATCH)))


@contextmanager
def seek_disk(source: Path, *, seek_s: float = 0.0, open_s: float = 0.0, bytes_per_s: float = 200e6) -> Iterator[Path]:
    """Mount the files of a folder on a simulated disk with one head (FUSE), without any cache; yield its folder."""
    with (
        tempfile.TemporaryDirectory(prefix=f"penstock-disk-{os.getpid()}-") as mountpoint,
        detached_process("seekdisk", str(source), mountpoint, str(seek_s), str(open_s), str(bytes_per_s)),
    ):
        yield Path(mountpoint)


@dataclass(frozen=True, slots=True)
class FileRegions:
    """Map-style dataset over one large file: a sample is one or more regions of it, adjacent or scattered."""

    file: Path
    offsets: NDArray[np.int64]
    """Offset of each region: (samples, regions per sample)."""
    size_bytes: int
    """Size of a region."""

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        opened = os.open(self.file, os.O_RDONLY)
        try:
            if len(self.offsets[index]) > 1:
                os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_RANDOM)
            regions = [os.pread(opened, self.size_bytes, int(offset)) for offset in self.offsets[index]]
        finally:
            os.close(opened)
        return np.frombuffer(bytearray(b"".join(region[:1024] for region in regions)), np.uint8)


class ShardStreams(IterableDataset[NDArray[np.uint8]]):
    """Dataset in which each worker reads its shards from front to back, repeatedly, until it has its samples."""

    def __init__(self, shards: tuple[Path, ...], samples: int) -> None:
        self._shards = shards
        self._samples = samples

    def __iter__(self) -> Iterator[NDArray[np.uint8]]:
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


def _uncached_regions(case: Case, size_bytes: int, regions: int) -> FileRegions:
    """Return a dataset that reads no region twice, with none of them in the page cache.

    The regions of a sample are at random offsets if it has more than one.
    """
    count = case.steps * BATCH * regions
    file = noise_file(case.folder, max(count * size_bytes, 64 << 20))
    numbers = np.arange(file.stat().st_size // size_bytes)
    if regions > 1:
        np.random.default_rng(case.seed).shuffle(numbers)
    drop_from_page_cache(file)
    return FileRegions(file, (numbers[:count] * size_bytes).reshape(-1, regions), size_bytes)


def drop_from_page_cache(file: Path) -> None:
    """Ask the kernel to drop the pages of a file, which must have been written to the disk."""
    with file.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def _throttled(case: Case, limit: str, rate: int) -> Iterator[None]:
    """Limit the disk under the data to a rate per second until the block ends; 0: no limit."""
    with ExitStack() as stack:
        if rate:
            stack.enter_context(cgroup.limited("blkio", {limit: f"{cgroup.disk_number(case.folder)} {rate}"}))
        yield

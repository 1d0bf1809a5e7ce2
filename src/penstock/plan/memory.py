"""How much memory a loader needs, and whether it is there: said before it kills the run.

torch's DataLoader (checked on 2.13): W·P tasks are out at most. Each is waiting (no memory), in the making (its
samples, then the stacked batch beside them) or made and lying in shared memory until its turn comes; at the worst all
are made or nearly so. One more batch is in the loop's hands. With `pin_memory` a thread copies each made batch to
pinned memory at once, and the host allocator gives powers of two.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from penstock.core.cgroups import free_bytes
from penstock.core.format import format_bytes
from penstock.errors import SettingError

TORCH_BYTES = 140 << 20
"""What `import torch` (2.13) adds to a process's own memory, pages of the library that all share left out."""
SHM = Path("/dev/shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Of one loader, at the worst moment."""

    batches_bytes: int
    """In the making, made, and in the loop's hands."""
    workers_bytes: int
    """Interpreters and libraries."""
    shared_bytes: int = 0
    """Of the batches, in shared memory: containers often have only 64 MB of it."""
    words: str = ""
    """How it comes about."""

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.batches_bytes + self.workers_bytes


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """Whether it fits, and the sentence to tell."""

    fits: bool
    sentence: str

    def __bool__(self) -> bool:
        return self.fits


def torch_need(
    *, workers: int, prefetch: int, batch_bytes: int, worker_bytes: int | None = None, pinned: bool = False
) -> MemoryNeed:
    """Of a torch DataLoader: see the module's first lines. `worker_bytes` is measured here where it is not given."""
    if workers < 0 or prefetch < 1 or batch_bytes < 0:
        raise SettingError(f"{workers} workers with a prefetch_factor of {prefetch} hold no {batch_bytes} B a batch")
    waiting = power_of_two(batch_bytes) if pinned else batch_bytes
    if not workers:
        return MemoryNeed(batches_bytes=2 * batch_bytes + waiting, workers_bytes=0, words="one batch at a time")
    each = own_bytes() if worker_bytes is None else worker_bytes
    made, in_the_making = workers * prefetch, workers
    return MemoryNeed(
        batches_bytes=(made + 1) * waiting + in_the_making * batch_bytes + (batch_bytes if pinned else 0),
        workers_bytes=workers * each,
        shared_bytes=(workers + 1 if pinned else made + 1) * batch_bytes,
        words=f"{workers} workers × (prefetch {prefetch} + 1 in the making) × {format_bytes(batch_bytes)} a batch, "
        f"and {format_bytes(each)} for each worker itself",
    )


def loader_need(*, slabs: int, slab_bytes: int, arena_bytes: int, workers: int, worker_bytes: int) -> MemoryNeed:
    """Of a penstock.Loader; its `memory_bytes` is a budget for all of this together, and it keeps within it."""
    return MemoryNeed(
        batches_bytes=slabs * slab_bytes + arena_bytes,
        workers_bytes=workers * worker_bytes,
        words=f"{slabs} batches × {format_bytes(slab_bytes)}, {format_bytes(arena_bytes)} of blocks, "
        f"{workers} workers × {format_bytes(worker_bytes)}",
    )


def own_bytes() -> int:
    """What a worker process may come to hold for itself, measured on the process that asks.

    Its own resident memory without pages that are shared with other processes. A spawned worker imports the same
    again; a forked one begins with all pages shared and gets its own copy of whatever it touches, reference counts
    included: both come to this at most. Where torch is not imported here, what it would add is added (TORCH_BYTES);
    a dataset that this process has not loaded yet is not in it.
    """
    info = psutil.Process().memory_info()
    own = int(info.rss) - int(getattr(info, "shared", 0))
    return own if "torch" in sys.modules else own + TORCH_BYTES


def fits(need: MemoryNeed, free: int | None = None, *, shared_free: int | None = None, share: float = 1.0) -> MemoryFit:
    """Whether it may be taken: of `free` bytes so large a share, and of shared memory what is there.

    `free` is what the machine or the container has left; asked here where it is not given. Shared memory is looked at
    only where `shared_free` is given.
    """
    room = free_bytes() if free is None else free
    problems = tuple(_problems(need, room, shared_free, share))
    if problems:
        return MemoryFit(False, "; ".join(problems))
    return MemoryFit(True, f"needs {format_bytes(need.total_bytes)} of {format_bytes(room)} free")


def _problems(need: MemoryNeed, room: int, shared_free: int | None, share: float) -> Iterator[str]:
    if need.total_bytes > share * room:
        of = "" if share >= 1 else f", of which {share:.0%} may be used"
        yield f"needs {format_bytes(need.total_bytes)} ({need.words}) and {format_bytes(room)} are free{of}"
    if shared_free is not None and need.shared_bytes > shared_free:
        shared, room_there = format_bytes(need.shared_bytes), format_bytes(shared_free)
        yield f"needs {shared} of shared memory and {room_there} are free: see --shm-size"


def shared_free_bytes(path: Path = SHM) -> int | None:
    """Room for batches between processes; None where the system keeps it elsewhere (macOS, Windows)."""
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def power_of_two(size_bytes: int) -> int:
    """What the host allocator for pinned memory gives for so many bytes."""
    return 1 << (size_bytes - 1).bit_length() if size_bytes > 1 else size_bytes

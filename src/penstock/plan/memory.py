"""The memory that a torch DataLoader needs, and whether it is free; checked before a run fails for lack of it.

The model of torch's DataLoader (checked on torch 2.13): at most W·P tasks are outstanding (W workers, prefetch factor
P). A task is waiting (no memory), being made (its samples, then the collated batch beside them), or made and kept in
shared memory until the loop takes it; in the worst case all of them are made or nearly so. One more batch is in use by
the training loop. With `pin_memory` a thread copies each finished batch to pinned memory at once, and the pinned-memory
allocator rounds sizes up to powers of two.
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
"""Private memory that `import torch` (2.13) adds to a process; shared pages of the library are not counted."""
SHM = Path("/dev/shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """The memory of one loader in the worst case."""

    batches_bytes: int
    """Batches that are being made, are ready, or are used by the training loop."""
    workers_bytes: int
    """Interpreters and libraries of the worker processes."""
    shared_bytes: int = 0
    """The part of the batches that lies in shared memory, of which containers often have only 64 MB."""
    formula: str = ""
    """The calculation in words."""

    @property
    def total_bytes(self) -> int:
        """Bytes of batches and workers together."""
        return self.batches_bytes + self.workers_bytes


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """Whether a need fits into the free memory, and a text that says so; true if it fits."""

    fits: bool
    text: str

    def __bool__(self) -> bool:
        return self.fits


def torch_need(
    *, workers: int, prefetch: int, batch_bytes: int, worker_bytes: int | None = None, pinned: bool = False
) -> MemoryNeed:
    """Return the memory that a torch DataLoader needs, by the model in the module docstring.

    `worker_bytes` is measured on this process if it is None.
    """
    if workers < 0 or prefetch < 1 or batch_bytes < 0:
        raise SettingError(f"{workers} workers, prefetch_factor={prefetch}, {batch_bytes} B per batch are impossible")
    ready_bytes = power_of_two(batch_bytes) if pinned else batch_bytes
    if not workers:
        return MemoryNeed(batches_bytes=2 * batch_bytes + ready_bytes, workers_bytes=0, formula="one batch at a time")
    per_worker_bytes = own_bytes() if worker_bytes is None else worker_bytes
    ready, in_progress = workers * prefetch, workers
    return MemoryNeed(
        batches_bytes=(ready + 1) * ready_bytes + in_progress * batch_bytes + (batch_bytes if pinned else 0),
        workers_bytes=workers * per_worker_bytes,
        shared_bytes=(workers + 1 if pinned else ready + 1) * batch_bytes,
        formula=f"{workers} workers × (prefetch {prefetch} + 1 in progress) × {format_bytes(batch_bytes)} per batch, "
        f"and {format_bytes(per_worker_bytes)} for each worker process",
    )


def own_bytes() -> int:
    """Return the private memory that a worker process may reach, estimated from the calling process.

    The estimate is the resident memory of this process without pages shared with other processes. A spawned worker
    imports the same modules again; a forked worker starts with all pages shared and copies those it writes to,
    reference counts included: neither takes more than that. TORCH_BYTES is added where torch is not imported yet. A
    dataset that this process has not loaded yet is not included.
    """
    info = psutil.Process().memory_info()
    own = int(info.rss) - int(getattr(info, "shared", 0))
    return own if "torch" in sys.modules else own + TORCH_BYTES


def fits(need: MemoryNeed, free: int | None = None, *, shared_free: int | None = None, share: float = 1.0) -> MemoryFit:
    """Return whether the need fits into `share` of the `free` bytes, and into the free shared memory.

    `free` is what the machine or the container has left; it is measured if it is None. Shared memory is checked only
    if `shared_free` is given, and all of it may be used.
    """
    available = free_bytes() if free is None else free
    problems = tuple(_problems(need, available, shared_free, share))
    if problems:
        return MemoryFit(False, "; ".join(problems))
    return MemoryFit(True, f"needs {format_bytes(need.total_bytes)} of {format_bytes(available)} free")


def _problems(need: MemoryNeed, available: int, shared_free: int | None, share: float) -> Iterator[str]:
    if need.total_bytes > share * available:
        part = "" if share >= 1 else f", of which {share:.0%} may be used"
        yield f"needs {format_bytes(need.total_bytes)} ({need.formula}) and {format_bytes(available)} are free{part}"
    if shared_free is not None and need.shared_bytes > shared_free:
        needed, free = format_bytes(need.shared_bytes), format_bytes(shared_free)
        yield f"needs {needed} of shared memory and {free} are free: see --shm-size"


def shared_free_bytes(path: Path = SHM) -> int | None:
    """Return the free shared memory; None where the system keeps it elsewhere (macOS, Windows)."""
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def power_of_two(size_bytes: int) -> int:
    """Return the size that torch's pinned-memory allocator reserves for so many bytes."""
    return 1 << (size_bytes - 1).bit_length() if size_bytes > 1 else size_bytes

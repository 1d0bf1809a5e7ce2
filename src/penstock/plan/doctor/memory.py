"""Memory: what a loader may still take, the shared memory that torch's workers deliver through, and swap."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from penstock.core.cgroups import free_bytes
from penstock.plan.doctor.check import Check, CheckStatus, not_known, size_words
from penstock.recording.format import Machine

SHM = Path("/dev/shm")
SCARCE = 0.1
"""Below this share of the memory free, a loader has no room."""
SHM_CONTAINER_BYTES = 64 << 20
"""What a container gets unless it is told otherwise: a batch of 24 pictures of 1024² is larger."""
SHM_SMALL_BYTES = 1 << 30
"""8 workers × prefetch 2 have some 60 MB a batch here."""
SWAPPED = 0.05
"""More than this share of the memory moved to the disk is not the usual tidying up."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class MemorySpace:
    """Bytes of something, and how many of them are taken."""

    total_bytes: int
    used_bytes: int

    @property
    def free_bytes(self) -> int:
        """What is left."""
        return self.total_bytes - self.used_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """None where the system does not tell."""

    total_bytes: int | None = None
    limit_bytes: int | None = None
    """The container's, where it is below the machine's memory."""
    free_bytes: int | None = None
    """What could still be taken, by the machine and by the container."""
    shm: MemorySpace | None = None
    swap: MemorySpace | None = None


def read_memory(machine: Machine, shm: Path = SHM) -> MemoryFacts:
    """Ask everybody; who does not answer leaves a None."""
    return MemoryFacts(
        total_bytes=machine.memory_bytes or None,
        limit_bytes=machine.memory_limit_bytes,
        free_bytes=_asked(free_bytes),
        shm=_asked(lambda: _shared(shm)),
        swap=_asked(_swap),
    )


def memory_checks(memory: MemoryFacts) -> Iterator[Check]:
    """Three rows."""
    yield _memory(memory)
    yield _shm(memory.shm)
    yield _swapped(memory)


def _memory(memory: MemoryFacts) -> Check:
    if memory.total_bytes is None or memory.free_bytes is None:
        return not_known("memory", "The system does not say how much memory there is, or how much of it is free.")
    most = memory.limit_bytes or memory.total_bytes
    value = f"{size_words(memory.free_bytes)} free of {size_words(most)}"
    if memory.limit_bytes is not None:
        value += f" (limit; the machine has {size_words(memory.total_bytes)})"
    if memory.free_bytes < SCARCE * most:
        meaning = "Nearly all of it is taken: a loader with workers will be swapped out or killed."
        return Check("memory", value, meaning, CheckStatus.LOOK)
    meaning = "Workers × prefetch × batch bytes must fit into this, with room for the page cache that keeps files warm."
    if memory.limit_bytes is not None:
        meaning += " Beyond the container's limit, workers are killed without a word."
    return Check("memory", value, meaning)


def _shm(shm: MemorySpace | None) -> Check:
    if shm is None:
        return not_known("/dev/shm", "Not there, or not to be seen: torch's workers deliver by another way.")
    value = f"{size_words(shm.free_bytes)} free of {size_words(shm.total_bytes)}"
    cure = "Start the container with --shm-size=8g or --ipc=host; penstock.Loader does not use it."
    if shm.free_bytes <= SHM_CONTAINER_BYTES:
        meaning = f"torch's workers deliver every batch through here, and die of a bus error when it is full. {cure}"
        return Check("/dev/shm", value, meaning, CheckStatus.BAD)
    if shm.free_bytes < SHM_SMALL_BYTES:
        meaning = f"torch's workers deliver through here: workers × prefetch batches must fit at once. {cure}"
        return Check("/dev/shm", value, meaning, CheckStatus.LOOK)
    return Check("/dev/shm", value, "torch's workers deliver their batches through here: there is room.")


def _swapped(memory: MemoryFacts) -> Check:
    swap = memory.swap
    if swap is None:
        return not_known("swap", "The system does not say.")
    if swap.total_bytes == 0:
        return Check("swap", "none", "A run that needs more than the memory is killed, not slowed down.")
    value = f"{size_words(swap.used_bytes)} used of {size_words(swap.total_bytes)}"
    if swap.used_bytes > SWAPPED * (memory.total_bytes or swap.total_bytes):
        meaning = "Memory has been short: what comes back from the disk stalls whoever touches it."
        return Check("swap", value, meaning, CheckStatus.LOOK)
    return Check("swap", value, "Hardly used: memory has not been short.")


def _shared(path: Path) -> MemorySpace:
    usage = shutil.disk_usage(path)
    return MemorySpace(usage.total, usage.total - usage.free)


def _swap() -> MemorySpace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # psutil warns where a container hides /proc/vmstat
        swap = psutil.swap_memory()
    return MemorySpace(swap.total, swap.used)


def _asked(question: Callable[[], Answer]) -> Answer | None:
    try:
        return question()
    except (OSError, RuntimeError, ValueError, psutil.Error):  # no file, no permission, a kernel without it
        return None

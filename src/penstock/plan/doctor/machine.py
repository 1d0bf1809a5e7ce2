"""Cores: those that may really be used, which is often not what `os.cpu_count()` says."""

from __future__ import annotations

import importlib.metadata
import multiprocessing
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from penstock.core.cgroups import free_bytes
from penstock.core.format import format_bytes
from penstock.plan.doctor.check import Check, CheckStatus, not_known
from penstock.recording.format import Machine


def core_checks(machine: Machine) -> Iterator[Check]:
    """Affinity and the container's quota, against what the machine has."""
    usable, cores, quota = machine.usable_cores, machine.cores, machine.quota_cores
    value = f"{usable} of {cores}"
    if quota is not None and quota < cores:
        meaning = (
            f"The container may use {quota:.3g} cores' worth of time and is stopped for the rest of each period; "
            f"os.cpu_count() still says {cores}, so a num_workers taken from it is too large."
        )
        yield Check("cores", f"{value} (quota {quota:.3g})", meaning, CheckStatus.LOOK)
    elif usable < cores:
        meaning = (
            f"The affinity mask leaves {usable}; os.cpu_count() still says {cores}, "
            "so a num_workers taken from it is too large."
        )
        yield Check("cores", value, meaning, CheckStatus.LOOK)
    elif usable == 1:
        meaning = "Decoding and the training loop share one core: workers can hide waiting, not computing."
        yield Check("cores", value, meaning, CheckStatus.LOOK)
    else:
        meaning = f"Decoding can use {usable} workers; more of them only pay where they wait for storage."
        yield Check("cores", value, meaning)


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
    value = f"{format_bytes(memory.free_bytes)} free of {format_bytes(most)}"
    if memory.limit_bytes is not None:
        value += f" (limit; the machine has {format_bytes(memory.total_bytes)})"
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
    value = f"{format_bytes(shm.free_bytes)} free of {format_bytes(shm.total_bytes)}"
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
    value = f"{format_bytes(swap.used_bytes)} used of {format_bytes(swap.total_bytes)}"
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


NODES = Path("/sys/devices/system/node")
FEW_FILES = 1024
"""What most systems start with. Below it a few workers with batches of several tensors reach the end."""
UNLIMITED = -1


def limit_checks(nodes: Path = NODES) -> Iterator[Check]:
    """Of this process; what it starts inherits them."""
    yield open_files(read_open_files())
    yield memory_nodes(read_nodes(nodes))
    yield start_method(read_start_method())


def read_open_files() -> tuple[int, int] | None:
    """Now and at most; None where the system has no such limit."""
    if sys.platform == "win32":
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY  # a large number on some systems
    return UNLIMITED if soft == endless else soft, UNLIMITED if hard == endless else hard


def open_files(limits: tuple[int, int] | None) -> Check:
    """torch hands every tensor over as an open file."""
    if limits is None:
        return not_known("open files", "This system has no such limit to look at.")
    soft, hard = limits
    if soft == UNLIMITED:
        return Check("open files", "unlimited", "Each tensor between a worker and the training is an open file.")
    most = "unlimited" if hard == UNLIMITED else f"{hard:,}"
    value = f"{soft:,} (at most {most})"
    if soft < FEW_FILES:
        meaning = (
            "Each tensor between a worker and the training is an open file: "
            '"Too many open files" is near. Raise it: ulimit -n.'
        )
        return Check("open files", value, meaning, CheckStatus.LOOK)
    meaning = "Each tensor between a worker and the training is an open file: enough, unless the loop keeps batches."
    return Check("open files", value, meaning)


def read_nodes(root: Path = NODES) -> int | None:
    """Memory nodes that have cores; None where the system does not say."""
    try:
        return sum(1 for file in root.glob("node[0-9]*/cpulist") if file.read_text().strip()) or None
    except OSError:
        return None


def memory_nodes(count: int | None) -> Check:
    """More than one, and it matters which core reads which memory."""
    if count is None:
        return not_known("NUMA nodes", "The system does not say how memory is shared out among the cores.")
    if count == 1:
        return Check("NUMA nodes", "1", "All memory is equally near to all cores.")
    meaning = (
        "Memory of another node is slower to read. worker_affinity=True keeps the workers of penstock.Loader near; "
        "for torch, start the training under numactl."
    )
    return Check("NUMA nodes", str(count), meaning)


def read_start_method() -> str:
    """What a DataLoader would use if nobody sets it; looking does not make it final."""
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def start_method(method: str) -> Check:
    """How torch's workers come to be; penstock's own are started another way on every system."""
    meanings = {
        "fork": "torch's workers begin as copies of the training: at once, but never after CUDA or threads were used.",
        "forkserver": "torch's workers come from a small server: safe beside CUDA, but what they get must pickle.",
        "spawn": (
            "Each of torch's workers is a new interpreter that imports the script again: seconds each, so use "
            "persistent_workers=True, and guard the script with if __name__ == '__main__'."
        ),
    }
    return Check("start method", method, meanings.get(method, "Not one of those that python ships."))


DISTRIBUTIONS = {"penstock": "penstock", "numpy": "numpy", "simplejpeg": "simplejpeg", "libdeflate": "deflate"}
"""By the name people know; the distribution that brings it."""
OPENCV = (
    "opencv-python-headless",
    "opencv-python",
    "opencv-contrib-python",
    "opencv-contrib-python-headless",
)
"""All of these write the same files."""

Version = Callable[[str], str | None]


def installed(distribution: str) -> str | None:
    """None where it is not."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def version_checks(machine: Machine, version: Version = installed) -> Iterator[Check]:
    """Python, torch, and what decodes."""
    yield _python(machine)
    yield _torch(machine)
    yield _packages(version)


def _python(machine: Machine) -> Check:
    free_threaded = not getattr(sys, "_is_gil_enabled", lambda: True)()
    if free_threaded:
        meaning = "Without a global lock: penstock.Loader decodes in threads."
    else:
        meaning = "One thread of Python at a time: decoding is done in worker processes."
    return Check("python", machine.python, f"{meaning} On {machine.platform}." if machine.platform else meaning)


def _torch(machine: Machine) -> Check:
    if machine.torch is None:
        meaning = 'Not installed: batches come as numpy arrays (device="numpy"), and there is no DataLoader to tune.'
        return Check("torch", "none", meaning, CheckStatus.OPEN)
    if machine.torch.endswith("+cpu") and machine.gpus:
        meaning = "Built without CUDA, though there is a GPU: training would run on the CPU. Install a CUDA build."
        return Check("torch", machine.torch, meaning, CheckStatus.BAD)
    return Check("torch", machine.torch, "Read from its metadata, not imported.")


def _packages(version: Version) -> Check:
    found = {name: version(distribution) for name, distribution in DISTRIBUTIONS.items()}
    opencvs = {name: known for name in OPENCV if (known := version(name)) is not None}
    found["opencv"] = next(iter(opencvs.values()), None)
    value = ", ".join(f"{name} {known or 'missing'}" for name, known in found.items())
    missing = [name for name, known in found.items() if known is None]
    if missing:
        meaning = f"{', '.join(missing)} cannot be found: install penstock again."
        return Check("packages", value, meaning, CheckStatus.BAD)
    if len(opencvs) > 1:
        meaning = f"{' and '.join(opencvs)} write the same files: remove all but opencv-python-headless."
        return Check("packages", value, meaning, CheckStatus.LOOK)
    return Check("packages", value, "What decodes, resizes and inflates in penstock's workers.")

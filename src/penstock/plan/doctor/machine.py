"""Checks of the machine: cores, memory, shared memory, swap, limits of a process, versions of packages.

Each check is in two parts: a function that reads the facts from the system, and one that judges them.
"""

from __future__ import annotations

import importlib.metadata
import multiprocessing
import os
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
from penstock.plan.doctor.check import Check, CheckStatus, unknown_check
from penstock.recording.format import Machine

# -- cores ---------------------------------------------------------------------------------------------------------


def core_checks(machine: Machine) -> Iterator[Check]:
    """Compare the usable cores with those of the machine: affinity and the container's quota may leave fewer."""
    usable, cores, quota = machine.usable_cores, machine.cores, machine.quota_cores
    value = f"{usable} of {cores}"
    if quota is not None and quota < cores:
        meaning = (
            f"The container may use {quota:.3g} cores' worth of time and is stopped for the rest of each period; "
            f"os.cpu_count() still says {cores}, so a num_workers taken from it is too large."
        )
        yield Check("cores", f"{value} (quota {quota:.3g})", meaning, CheckStatus.ATTENTION)
    elif usable < cores:
        meaning = (
            f"The affinity mask leaves {usable}; os.cpu_count() still says {cores}, "
            "so a num_workers taken from it is too large."
        )
        yield Check("cores", value, meaning, CheckStatus.ATTENTION)
    elif usable == 1:
        meaning = "Decoding and the training loop share one core: workers can hide waiting, not computing."
        yield Check("cores", value, meaning, CheckStatus.ATTENTION)
    else:
        meaning = f"Decoding can use {usable} workers; more of them only pay where they wait for storage."
        yield Check("cores", value, meaning)


# -- memory --------------------------------------------------------------------------------------------------------

SHM = Path("/dev/shm")
SCARCE = 0.1
"""Share of the memory that is free below which a loader has too little."""
SHM_CONTAINER_BYTES = 64 << 20
"""Default size of shared memory in a container: a batch of 24 images of 1024² is larger."""
SHM_SMALL_BYTES = 1 << 30
"""Shared memory in which 8 workers × prefetch 2 have some 60 MB per batch."""
SWAPPED = 0.05
"""Share of the memory in swap above which memory must have been short; a little is moved there at any time."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class MemorySpace:
    """The size of a kind of memory, and how much of it is used."""

    total_bytes: int
    used_bytes: int

    @property
    def free_bytes(self) -> int:
        """Bytes that are not used."""
        return self.total_bytes - self.used_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """The memory of the machine; None where the system does not report it."""

    total_bytes: int | None = None
    limit_bytes: int | None = None
    """The container's limit, if it is below the machine's memory."""
    free_bytes: int | None = None
    """Bytes that can still be allocated, within the limits of machine and container."""
    shm: MemorySpace | None = None
    swap: MemorySpace | None = None


def read_memory(machine: Machine, shm: Path = SHM) -> MemoryFacts:
    """Read all memory facts; those that cannot be read are None."""
    return MemoryFacts(
        total_bytes=machine.memory_bytes or None,
        limit_bytes=machine.memory_limit_bytes,
        free_bytes=_read_or_none(free_bytes),
        shm=_read_or_none(lambda: _shared_memory(shm)),
        swap=_read_or_none(_swap),
    )


def memory_checks(memory: MemoryFacts) -> Iterator[Check]:
    """Judge free memory, shared memory and swap."""
    yield _memory_check(memory)
    yield _shm_check(memory.shm)
    yield _swap_check(memory)


def _memory_check(memory: MemoryFacts) -> Check:
    if memory.total_bytes is None or memory.free_bytes is None:
        return unknown_check("memory", "The system does not say how much memory there is, or how much of it is free.")
    most = memory.limit_bytes or memory.total_bytes
    value = f"{format_bytes(memory.free_bytes)} free of {format_bytes(most)}"
    if memory.limit_bytes is not None:
        value += f" (limit; the machine has {format_bytes(memory.total_bytes)})"
    if memory.free_bytes < SCARCE * most:
        meaning = "Nearly all of it is taken: a loader with workers will be swapped out or killed."
        return Check("memory", value, meaning, CheckStatus.ATTENTION)
    meaning = "Workers × prefetch × batch bytes must fit into this, and the page cache needs memory to keep files warm."
    if memory.limit_bytes is not None:
        meaning += " Beyond the container's limit, workers are killed without a message."
    return Check("memory", value, meaning)


def _shm_check(shm: MemorySpace | None) -> Check:
    if shm is None:
        return unknown_check("/dev/shm", "It does not exist or cannot be read: torch's workers use another transport.")
    value = f"{format_bytes(shm.free_bytes)} free of {format_bytes(shm.total_bytes)}"
    remedy = "Start the container with --shm-size=8g or --ipc=host; penstock.Loader does not use it."
    if shm.free_bytes <= SHM_CONTAINER_BYTES:
        meaning = f"torch's workers deliver every batch through it, and die of a bus error when it is full. {remedy}"
        return Check("/dev/shm", value, meaning, CheckStatus.BAD)
    if shm.free_bytes < SHM_SMALL_BYTES:
        meaning = f"torch's workers deliver through it: workers × prefetch batches must fit at once. {remedy}"
        return Check("/dev/shm", value, meaning, CheckStatus.ATTENTION)
    return Check("/dev/shm", value, "torch's workers deliver their batches through it: there is enough.")


def _swap_check(memory: MemoryFacts) -> Check:
    swap = memory.swap
    if swap is None:
        return unknown_check("swap", "The system does not say.")
    if swap.total_bytes == 0:
        return Check("swap", "none", "A run that needs more than the memory is killed, not slowed down.")
    value = f"{format_bytes(swap.used_bytes)} used of {format_bytes(swap.total_bytes)}"
    if swap.used_bytes > SWAPPED * (memory.total_bytes or swap.total_bytes):
        meaning = "Memory has been short: a process that reads swapped pages waits for the disk."
        return Check("swap", value, meaning, CheckStatus.ATTENTION)
    return Check("swap", value, "Hardly used: memory has not been short.")


def _shared_memory(path: Path) -> MemorySpace:
    usage = shutil.disk_usage(path)
    return MemorySpace(usage.total, usage.total - usage.free)


def _swap() -> MemorySpace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # psutil warns where a container hides /proc/vmstat
        swap = psutil.swap_memory()
    return MemorySpace(swap.total, swap.used)


def _read_or_none(read: Callable[[], Answer]) -> Answer | None:
    try:
        return read()
    except (OSError, RuntimeError, ValueError, psutil.Error):  # no file, no permission, a kernel without it
        return None


# -- limits of a process -------------------------------------------------------------------------------------------

NODES = Path("/sys/devices/system/node")
FEW_FILES = 1024
"""The usual default of most systems; below it, a few workers with batches of several tensors exceed the limit."""
UNLIMITED = -1


def limit_checks(nodes: Path = NODES) -> Iterator[Check]:
    """Judge open files, memory nodes and the start method of this process; child processes inherit them."""
    yield open_files_check(read_open_files())
    yield numa_check(read_numa_nodes(nodes))
    yield start_method_check(read_start_method())


def read_open_files() -> tuple[int, int] | None:
    """Return the soft and the hard limit; None where the system has no such limit."""
    if sys.platform == "win32":
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    infinity = resource.RLIM_INFINITY  # a large number on some systems
    return UNLIMITED if soft == infinity else soft, UNLIMITED if hard == infinity else hard


def open_files_check(limits: tuple[int, int] | None) -> Check:
    """Judge the limit on open files: torch passes every tensor between processes as an open file."""
    if limits is None:
        return unknown_check("open files", "This system has no such limit.")
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
        return Check("open files", value, meaning, CheckStatus.ATTENTION)
    meaning = "Each tensor between a worker and the training is an open file: enough, unless the loop keeps batches."
    return Check("open files", value, meaning)


def read_numa_nodes(root: Path = NODES) -> int | None:
    """Return the number of memory nodes that have cores; None where the system does not say."""
    try:
        return sum(1 for file in root.glob("node[0-9]*/cpulist") if file.read_text().strip()) or None
    except OSError:
        return None


def numa_check(count: int | None) -> Check:
    """Explain the number of memory nodes: with several, it matters which core reads which memory."""
    if count is None:
        return unknown_check("NUMA nodes", "The system does not say how memory is divided between the cores.")
    if count == 1:
        return Check("NUMA nodes", "1", "All memory is equally near to all cores.")
    meaning = (
        "Memory of another node is slower to read. pin_workers=True keeps the workers of penstock.Loader near; "
        "for torch, start the training under numactl."
    )
    return Check("NUMA nodes", str(count), meaning)


def read_start_method() -> str:
    """Return the start method that a DataLoader uses by default; reading it does not fix it."""
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def start_method_check(method: str) -> Check:
    """Explain how torch's workers start; the workers of penstock.Loader always start by a method of their own."""
    meanings = {
        "fork": "torch's workers begin as copies of the training: at once, but never after CUDA or threads were used.",
        "forkserver": "torch's workers come from a small server: safe beside CUDA, but what they get must pickle.",
        "spawn": (
            "Each of torch's workers is a new interpreter that imports the script again: seconds each, so use "
            "persistent_workers=True, and guard the script with if __name__ == '__main__'."
        ),
    }
    return Check("start method", method, meanings.get(method, "It is not one of Python's own methods."))


# -- versions ------------------------------------------------------------------------------------------------------

DISTRIBUTIONS = {"penstock": "penstock", "numpy": "numpy", "simplejpeg": "simplejpeg", "libdeflate": "deflate"}
"""The distribution that provides each package, by the common name of the package."""
OPENCV = (
    "opencv-python-headless",
    "opencv-python",
    "opencv-contrib-python",
    "opencv-contrib-python-headless",
)
"""Distributions that all install the same files."""

Version = Callable[[str], str | None]


def installed_version(distribution: str) -> str | None:
    """Return the version from the metadata without an import; None where it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def version_checks(machine: Machine, version: Version = installed_version) -> Iterator[Check]:
    """Judge Python, torch, the packages that decode, and the decoder of JPEGs that is in use."""
    yield _python_check(machine)
    yield _torch_check(machine)
    yield _packages_check(version)
    yield jpeg_decoder_check(os.environ.get("PENSTOCK_COMPILED") == "0", why_not_compiled())


def _python_check(machine: Machine) -> Check:
    free_threaded = not getattr(sys, "_is_gil_enabled", lambda: True)()
    if free_threaded:
        meaning = "Without a global lock: penstock.Loader decodes in threads."
    else:
        meaning = "One thread of Python at a time: decoding is done in worker processes."
    return Check("python", machine.python, f"{meaning} On {machine.platform}." if machine.platform else meaning)


def _torch_check(machine: Machine) -> Check:
    if machine.torch is None:
        meaning = 'Not installed: batches come as numpy arrays (device="numpy"), and there is no DataLoader to tune.'
        return Check("torch", "none", meaning, CheckStatus.UNKNOWN)
    if machine.torch.endswith("+cpu") and machine.gpus:
        meaning = "Built without CUDA, though there is a GPU: training would run on the CPU. Install a CUDA build."
        return Check("torch", machine.torch, meaning, CheckStatus.BAD)
    return Check("torch", machine.torch, "Read from its metadata, not imported.")


def _packages_check(version: Version) -> Check:
    found = {name: version(distribution) for name, distribution in DISTRIBUTIONS.items()}
    opencv = {name: known for name in OPENCV if (known := version(name)) is not None}
    found["opencv"] = next(iter(opencv.values()), None)
    value = ", ".join(f"{name} {known or 'missing'}" for name, known in found.items())
    missing = [name for name, known in found.items() if known is None]
    if missing:
        meaning = f"{', '.join(missing)} cannot be found: install penstock again."
        return Check("packages", value, meaning, CheckStatus.BAD)
    if len(opencv) > 1:
        meaning = f"{' and '.join(opencv)} install the same files: remove all but opencv-python-headless."
        return Check("packages", value, meaning, CheckStatus.ATTENTION)
    return Check("packages", value, "They decode, resize and decompress in the workers of penstock.Loader.")


def why_not_compiled() -> str | None:
    """Return why the compiled JPEG decoder cannot be used; None if it can."""
    try:
        from penstock import _decode  # noqa: F401
    except ImportError as error:
        return str(error)
    return None


def jpeg_decoder_check(turned_off: bool, failure: str | None) -> Check:
    """Judge which decoder of JPEGs is in use; `failure` says why the compiled one cannot be imported."""
    gain = "It decodes only the window of a RandomResizedCrop, and takes about two thirds of the time."
    if turned_off and failure is None:
        meaning = f"PENSTOCK_COMPILED=0 turns the compiled decoder off. {gain}"
        return Check("JPEG decoder", "simplejpeg", meaning, CheckStatus.ATTENTION)
    if failure is None:
        return Check("JPEG decoder", "compiled", "Decodes, resizes and stores an image in one call, without the GIL.")
    meaning = (
        f"The compiled decoder is not there ({failure}). {gain} Install a C compiler and the headers of libjpeg-turbo "
        "(Debian and Ubuntu: libjpeg-dev), and install penstock again."
    )
    return Check("JPEG decoder", "simplejpeg", meaning, CheckStatus.ATTENTION)

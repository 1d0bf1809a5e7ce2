"""What the system allows a process and how it starts new ones: open files, memory nodes, the start method."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator
from pathlib import Path

from penstock.plan.doctor.check import Check, CheckStatus, not_known

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
        "Memory of another node is slower to read. pin_workers=True keeps the workers of penstock.Loader near; "
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

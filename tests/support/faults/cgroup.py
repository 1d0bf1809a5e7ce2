"""Kernel limits on the CPU and the disk of this process and its children (cgroup v1: root, or a delegated group)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.errors import StorageError

_ROOT = Path("/sys/fs/cgroup")


@contextmanager
def limited(controller: str, limits: dict[str, str]) -> Iterator[Path]:
    """Move this process into a new group with these limits (file → value) for the block; yield the group's folder.

    The folder also has the group's counters.
    """
    parent = _current_group(controller)
    group = parent / f"penstock-fault-{os.getpid()}"
    group.mkdir()
    try:
        for file, value in limits.items():
            (group / file).write_text(value)
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield group
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):  # a worker that has just ended
                (parent / "cgroup.procs").write_text(pid)
        group.rmdir()


def missing(controller: str, file: str) -> str | None:
    """Return why this limit cannot be set on this machine, or None if it can."""
    try:
        parent = _current_group(controller)
    except OSError:
        return f"there is no cgroup v1 controller {controller} here"
    if not (parent / "cgroup.procs").exists():
        return f"the cgroup of this process under {parent} is not visible"
    if not os.access(parent, os.W_OK):
        return f"no permission to make a cgroup under {parent}"
    return None if (_ROOT / controller / file).exists() or file.startswith("cpu.") else f"the kernel has no {file}"


def disk_number(folder: Path) -> str:
    """Return MAJOR:MINOR of the whole disk under a folder, because limits are set on disks, not on partitions."""
    device = folder.stat().st_dev
    entry = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if not entry.exists():
        raise StorageError(f"{folder} does not lie on a block device", advice="Give a folder on a local disk")
    disk = entry.resolve()
    return ((disk.parent if (disk / "partition").exists() else disk) / "dev").read_text().strip()


def _current_group(controller: str) -> Path:
    """Return the folder of the group that this process is in."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return _ROOT / controller / path.lstrip("/")
    raise FileNotFoundError(controller)

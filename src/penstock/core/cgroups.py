"""Limits of CPU and memory that cgroups set for this process: a container's, a job scheduler's, a login session's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
_MEMORY_FILES = (
    ("memory.max", "memory.current", ""),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)
"""Files of cgroup version 2 and 1: limit, bytes in use, and the prefix of sums over children in `memory.stat`."""


def cgroup_folders(controller: str, root: Path = ROOT, membership: Path = MEMBERSHIP) -> Iterator[Path]:
    """Yield the folder of this process's cgroup, then of those above it: version 1 of the controller, else version 2.

    In a container, /proc may name a folder of the host that does not exist here: then the root of the mount is used.
    """
    mount, path = _hierarchy(controller, root, membership)
    if mount is None:
        return
    folder = mount / path.lstrip("/")
    if ".." in folder.parts or not folder.is_dir():
        folder = mount
    while folder != mount:
        yield folder
        folder = folder.parent
    yield mount


def quota_cores(root: Path = ROOT, membership: Path = MEMBERSHIP) -> float | None:
    """Return the CPU time per second, in cores, that the tightest cgroup of this process allows; None if unlimited."""
    quotas = []
    for folder in cgroup_folders("cpu", root, membership):
        with suppress(OSError, ValueError, ZeroDivisionError):
            limit, period = (folder / "cpu.max").read_text().split()
            quotas.append(int(limit) / int(period))
        with suppress(OSError, ValueError, ZeroDivisionError):
            limit_us = int((folder / "cpu.cfs_quota_us").read_text())
            quotas.append(limit_us / int((folder / "cpu.cfs_period_us").read_text()))
    return min((quota for quota in quotas if quota > 0), default=None)


def memory_limit_bytes(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """Return the tightest cgroup's limit; cgroup version 1 without a limit gives a number larger than any machine."""
    return min((limit for limit, _ in _memory(root, membership)), default=None)


def memory_left_bytes(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """Return the bytes left in the tightest cgroup. Cached file pages count as free: they are dropped on demand."""
    return min((left for _, left in _memory(root, membership)), default=None)


def _memory(root: Path, membership: Path) -> Iterator[tuple[int, int]]:
    """Yield the limit and what is left of it, for each cgroup that has one."""
    for folder in cgroup_folders("memory", root, membership):
        for limit_name, used_name, prefix in _MEMORY_FILES:
            with suppress(OSError, ValueError):  # ValueError: the file says "max"
                limit = int((folder / limit_name).read_text())
                left = limit
                with suppress(OSError, ValueError):
                    left -= max(0, int((folder / used_name).read_text()) - _cached_files(folder, prefix))
                yield limit, max(0, left)


def _cached_files(folder: Path, prefix: str) -> int:
    with suppress(OSError, ValueError):
        counts = dict(line.split(maxsplit=1) for line in (folder / "memory.stat").read_text().splitlines())
        return sum(int(counts.get(f"{prefix}{kind}_file", 0)) for kind in ("inactive", "active"))
    return 0


def _hierarchy(controller: str, root: Path, membership: Path) -> tuple[Path | None, str]:
    """Return where the hierarchy is mounted, and the path of this process in it."""
    unified = ""
    with suppress(OSError, ValueError):
        for line in membership.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(",") and (root / controller).is_dir():
                return root / controller, path
            unified = path if not controllers else unified
    for mount in (root, root / "unified"):
        if (mount / "cgroup.controllers").exists():
            return mount, unified
    return None, ""


def free_bytes(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int:
    """Return the bytes that could still be allocated. Cached file pages count as free: they are dropped on demand."""
    free = psutil.virtual_memory().available
    left = memory_left_bytes(root, membership)
    return free if left is None else min(free, left)

"""What the cgroups above this process allow it: those of a container, of a job's scheduler, of a login session."""

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
"""Of cgroup version 2 and 1: the limit, what is in use, and how `memory.stat` calls what the children use too."""


def cgroup_folders(controller: str, root: Path = ROOT, membership: Path = MEMBERSHIP) -> Iterator[Path]:
    """The cgroup this process is in, then those above it: version 1 of this controller, else version 2.

    In a container the folder named in /proc may be the host's, unseen here: then the mount's own root is ours.
    """
    mount, path = _place(controller, root, membership)
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
    """Cores' worth of time that the tightest cgroup above this process allows."""
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
    """The tightest cgroup's; an old cgroup without a limit gives a number larger than any machine."""
    return min((limit for limit, _ in _memory(root, membership)), default=None)


def memory_left_bytes(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """What may still be taken in the tightest cgroup: cached file pages count as free, they give way."""
    return min((left for _, left in _memory(root, membership)), default=None)


def _memory(root: Path, membership: Path) -> Iterator[tuple[int, int]]:
    """Limit and what is left of it, for each cgroup that has one."""
    for folder in cgroup_folders("memory", root, membership):
        for limit_name, used_name, prefix in _MEMORY_FILES:
            with suppress(OSError, ValueError):  # also "max", which is no number
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


def _place(controller: str, root: Path, membership: Path) -> tuple[Path | None, str]:
    """Where the hierarchy is mounted, and our place in it."""
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
    """What could still be taken: cached file pages count as free, they give way."""
    free = psutil.virtual_memory().available
    left = memory_left_bytes(root, membership)
    return free if left is None else min(free, left)

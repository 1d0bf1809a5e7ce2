"""How much memory there is to take, for this machine or our container."""

from __future__ import annotations

from pathlib import Path

import psutil


def free_bytes(cgroup_root: Path = Path("/sys/fs/cgroup")) -> int:
    """What could still be taken: cached file pages count as free, they give way."""
    free = psutil.virtual_memory().available
    limit = _cgroup_free(cgroup_root)
    return free if limit is None else min(free, limit)


def _cgroup_free(root: Path) -> int | None:
    """What the container may still take: cgroup v2, then v1. Cached file pages count as free: they give way."""
    for limit_name, used_name, stat_name, prefix in (
        ("memory.max", "memory.current", "memory.stat", ""),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_"),
    ):
        try:
            limit, used = (root / limit_name).read_text().strip(), int((root / used_name).read_text())
            if limit == "max":
                return None
            cached = _cached_files(root / stat_name, prefix)
            return max(0, min(int(limit), int(limit) - used + cached))
        except (OSError, ValueError):
            continue
    return None


def _cached_files(stat: Path, prefix: str) -> int:
    try:
        counts = dict(line.split(maxsplit=1) for line in stat.read_text().splitlines())
        return int(counts.get(f"{prefix}inactive_file", 0)) + int(counts.get(f"{prefix}active_file", 0))
    except (OSError, ValueError):
        return 0

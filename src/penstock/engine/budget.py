"""How a memory budget is shared out: arena, slabs, workers. Pure arithmetic, and says what would be needed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from penstock.errors import SettingError

PROCESS_BYTES = 64 << 20
"""What a worker process holds for itself: interpreter, numpy, decoders, one sample in the making."""
LEAST_SLABS = 3
"""One in the training loop's hands, one complete, one being filled."""
MOST_SLABS = 8
SHARE_OF_FREE = 4
"""Without a budget we take a quarter of what is free."""
LEAST_ARENA_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Demand:
    """What a run would like to have."""

    slab_bytes: int
    block_bytes: int
    """A typical block."""
    largest_block_bytes: int
    blocks_in_use: int
    """As many as there are lanes, if the order is shuffled."""
    processes: int


@dataclass(frozen=True, slots=True)
class Shares:
    """What it gets."""

    slabs: int
    arena_bytes: int


def share_out(budget_bytes: int, demand: Demand) -> Shares:
    """Slabs first as far as they are needed, then the arena, then more slabs."""
    for_workers = demand.processes * PROCESS_BYTES
    least_arena = max(LEAST_ARENA_BYTES, 2 * demand.largest_block_bytes)
    least = LEAST_SLABS * demand.slab_bytes + least_arena + for_workers
    if least > budget_bytes:
        raise SettingError(
            f"a memory budget of {budget_bytes >> 20} MiB is too small: {LEAST_SLABS} batches of "
            f"{demand.slab_bytes >> 20} MiB, {least_arena >> 20} MiB for blocks and {for_workers >> 20} MiB "
            f"for workers make {(least >> 20) + 1} MiB",
            stage="plan",
            advice="Give more memory, a smaller batch_size, or fewer workers",
        )
    wanted_arena = max(least_arena, 2 * demand.blocks_in_use * demand.block_bytes)
    arena = min(wanted_arena, budget_bytes - for_workers - LEAST_SLABS * demand.slab_bytes)
    slabs = (budget_bytes - for_workers - arena) // demand.slab_bytes
    return Shares(min(MOST_SLABS, int(slabs)), arena)


def default_budget(cgroup_root: Path = Path("/sys/fs/cgroup")) -> int:
    """A quarter of what the machine, or our container, has free."""
    free = psutil.virtual_memory().available
    limit = _cgroup_free(cgroup_root)
    return (free if limit is None else min(free, limit)) // SHARE_OF_FREE


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

"""How many CPU cores this process may use, and which of them are near its memory."""

from __future__ import annotations

import os
from contextlib import suppress
from math import ceil
from pathlib import Path

from penstock.core.cgroups import MEMBERSHIP, ROOT, quota_cores
from penstock.core.ranks import local_rank, slurm_cores
from penstock.errors import SettingError

FEW_CORES = 4
"""Up to this number of cores, a loader uses all of them."""


def usable_cores(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int:
    """Return the cores of the affinity mask, limited by the CPU quota of the cgroups of this process; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = quota_cores(root, membership)
    return cores if quota is None else max(1, min(cores, ceil(quota)))


def rank_cores() -> int:
    """Return this rank's part of the cores: ranks divide the cores they share; a rank bound to fewer has those."""
    ranks, usable = local_rank().world_size, usable_cores()
    if ranks == 1:
        return usable
    pool = max(usable, _launcher_cores())
    limits = [limit for limit in (quota_cores(), slurm_cores()) if limit]
    return max(1, min(usable, int(min([pool, *limits])) // ranks))


def loader_cores() -> int:
    """Return the cores that a loader may keep busy. Of many, one is left to the training loop and the scheduler."""
    cores = rank_cores()
    return cores - (cores > FEW_CORES)


def worker_cores(workers: int, local_rank: int = 0, nodes: Path = Path("/sys/devices/system/node")) -> tuple[int, ...]:
    """Return the core for each worker.

    Cores of the memory node that this process runs on come first, and each rank of the machine takes the next ones.
    """
    if not hasattr(os, "sched_getaffinity"):
        raise SettingError("workers cannot be bound to cores on this system", advice="Leave worker_affinity out")
    node_of = _nodes(nodes)
    own_node = node_of.get(_current_core(), 0)
    allowed = sorted(
        os.sched_getaffinity(0), key=lambda core: (node_of.get(core, 0) != own_node, node_of.get(core, 0), core)
    )
    return tuple(allowed[(local_rank * workers + worker) % len(allowed)] for worker in range(workers))


def _launcher_cores() -> int:
    """Return the cores of the parent process, which may have bound each rank to some of its own; 0 if unknown."""
    with suppress(OSError, AttributeError):
        return len(os.sched_getaffinity(os.getppid()))
    return 0


def _nodes(root: Path) -> dict[int, int]:
    """Return the memory node of each core; empty where the system does not report it."""
    node_of: dict[int, int] = {}
    for folder in root.glob("node[0-9]*"):
        with suppress(OSError, ValueError):
            for piece in (folder / "cpulist").read_text().strip().split(","):
                first, _, last = piece.partition("-")
                node_of.update(dict.fromkeys(range(int(first), int(last or first) + 1), int(folder.name[4:])))
    return node_of


def _current_core() -> int:
    """Return the core that this process ran on last; -1 where the system does not report it."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[36])
    return -1

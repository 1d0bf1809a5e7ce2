"""How many cores this process may really use, and which are near."""

from __future__ import annotations

import os
from contextlib import suppress
from math import ceil
from pathlib import Path

from penstock.core.cgroups import MEMBERSHIP, ROOT, quota_cores
from penstock.core.ranks import local_rank, slurm_cores
from penstock.errors import SettingError

FEW_CORES = 4
"""Where there are no more, a loader uses them all."""


def usable_cores(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int:
    """The affinity mask, cut down to the CPU quota of our cgroups where there is one; never less than 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = quota_cores(root, membership)
    return cores if quota is None else max(1, min(cores, ceil(quota)))


def rank_cores() -> int:
    """Our part of them: ranks of one machine divide what they share, and one that is bound to fewer has those."""
    ranks, usable = local_rank().world_size, usable_cores()
    if ranks == 1:
        return usable
    pool = max(usable, _launcher_cores())
    limits = [limit for limit in (quota_cores(), slurm_cores()) if limit]
    return max(1, min(usable, int(min([pool, *limits])) // ranks))


def loader_cores() -> int:
    """Those that a loader may keep busy: where a rank has many, one is left to its loop and to handing out work."""
    cores = rank_cores()
    return cores - (cores > FEW_CORES)


def worker_cores(workers: int, local_rank: int = 0, nodes: Path = Path("/sys/devices/system/node")) -> tuple[int, ...]:
    """The core for each worker: those of the memory node we run on first, each rank of the machine after the other."""
    if not hasattr(os, "sched_getaffinity"):
        raise SettingError("workers cannot be pinned to cores on this system", advice="Leave pin_workers out")
    node_of = _nodes(nodes)
    here = node_of.get(_current_core(), 0)
    allowed = sorted(
        os.sched_getaffinity(0), key=lambda core: (node_of.get(core, 0) != here, node_of.get(core, 0), core)
    )
    return tuple(allowed[(local_rank * workers + at) % len(allowed)] for at in range(workers))


def _launcher_cores() -> int:
    """Of whoever started this rank and those beside it, which may have bound each to some of its own; 0: unknown."""
    with suppress(OSError, AttributeError):
        return len(os.sched_getaffinity(os.getppid()))
    return 0


def _nodes(root: Path) -> dict[int, int]:
    """The memory node of each core; empty where the system does not say."""
    found: dict[int, int] = {}
    for folder in root.glob("node[0-9]*"):
        with suppress(OSError, ValueError):
            for piece in (folder / "cpulist").read_text().strip().split(","):
                first, _, last = piece.partition("-")
                found.update(dict.fromkeys(range(int(first), int(last or first) + 1), int(folder.name[4:])))
    return found


def _current_core() -> int:
    """The core that this process ran on last; -1 where the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[36])
    return -1

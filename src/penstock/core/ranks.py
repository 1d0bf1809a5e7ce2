"""The rank of this process in its job, from torch.distributed or from the environment of the launcher.

torchrun sets RANK and WORLD_SIZE, and so do Ray Train, Accelerate and DeepSpeed. They go before Slurm's own variables,
because one Slurm task may hold several ranks of torchrun.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass

from penstock.errors import SettingError

_RUN = re.compile(r"(\d{1,9})(?:\(x(\d{1,9})\))?")
"""An entry of SLURM_STEP_TASKS_PER_NODE: `4(x2),3` means 4 tasks on each of two nodes, then 3 on one."""
_LOOPBACK = re.compile(r"localhost|127\.[\d.]+|::1")


@dataclass(frozen=True, slots=True)
class RankInfo:
    """The index of a process, and the number of processes."""

    rank: int = 0
    world_size: int = 1


def global_rank() -> RankInfo | None:
    """Return the rank among all ranks of the job; None where neither torch nor the environment reports it."""
    return rank_from_torch() or _from_launcher() or _from_slurm()


def local_rank() -> RankInfo:
    """Return the rank among those of this machine; the only one where that cannot be known."""
    if "LOCAL_WORLD_SIZE" in os.environ:
        info = RankInfo(_number("LOCAL_RANK", 0), _number("LOCAL_WORLD_SIZE"))
    else:
        info = _local_in_slurm() or _all_on_this_machine() or RankInfo()
    if not 0 <= info.rank < info.world_size:
        raise SettingError(f"local rank {info.rank} is not below the {info.world_size} ranks of this machine")
    return info


def slurm_cores() -> int | None:
    """Return the cores of the job on this machine, whether or not Slurm binds tasks to cores; None without Slurm."""
    return _number("SLURM_CPUS_ON_NODE") if _from_slurm() and "SLURM_CPUS_ON_NODE" in os.environ else None


def rank_from_torch() -> RankInfo | None:
    """Return the rank of an initialised torch.distributed; torch is not imported for this."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return RankInfo(distributed.get_rank(), distributed.get_world_size())


def _from_launcher() -> RankInfo | None:
    present = [name for name in ("RANK", "WORLD_SIZE") if name in os.environ]
    if len(present) == 1:
        missing = "WORLD_SIZE" if present == ["RANK"] else "RANK"
        raise SettingError(f"the environment has {present[0]!r}, but {missing!r} is not set")
    return RankInfo(_number("RANK"), _number("WORLD_SIZE")) if present else None


def _from_slurm() -> RankInfo | None:
    """Return the rank of a task in a step of several tasks.

    A batch script and a shell (srun --pty) inherit these variables although they are not such tasks; None for them.
    """
    if "SLURM_PTY_PORT" in os.environ or "SLURM_PROCID" not in os.environ:
        return None
    tasks = _number("SLURM_STEP_NUM_TASKS", 1)
    return RankInfo(_number("SLURM_PROCID"), tasks) if tasks > 1 else None


def _local_in_slurm() -> RankInfo | None:
    """Return the local rank if the ranks, however they were found, are Slurm's tasks."""
    tasks = _from_slurm()
    if tasks is None or (rank_from_torch() or _from_launcher() or tasks) != tasks:
        return None
    return RankInfo(_number("SLURM_LOCALID", 0), _tasks_on_node())


def _tasks_on_node() -> int:
    counts: list[int] = []
    for run in os.environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        if match := _RUN.fullmatch(run):
            counts += [int(match[1])] * min(int(match[2] or 1), 1 << 16)
    node = _number("SLURM_NODEID", 0)
    return counts[node] if node < len(counts) else _number("SLURM_NTASKS_PER_NODE", 1)


def _all_on_this_machine() -> RankInfo | None:
    """Return the local rank if the ranks meet at a loopback address, so that all of them are on this machine.

    Lightning, torch.multiprocessing and many scripts do so.
    """
    job = rank_from_torch() or (_from_launcher() if "RANK" in os.environ and "WORLD_SIZE" in os.environ else None)
    if job is None or not _LOOPBACK.fullmatch(os.environ.get("MASTER_ADDR", "")):
        return None
    return RankInfo(_number("LOCAL_RANK", job.rank), job.world_size)


def _number(name: str, default: int | None = None) -> int:
    text = os.environ.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdecimal():
        raise SettingError(
            f"{name}={text!r} in the environment is not a number", advice="Ask your launcher, or unset it"
        )
    return int(text)

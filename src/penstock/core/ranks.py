"""Which of the processes of a job this one is, as torch.distributed or the launcher's environment has it.

RANK and WORLD_SIZE are what torchrun sets, and those who follow it: Ray Train, Accelerate, DeepSpeed. They go before
Slurm's own variables, for one task of Slurm's may hold several ranks of torchrun's.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass

from penstock.errors import SettingError

_RUN = re.compile(r"(\d{1,9})(?:\(x(\d{1,9})\))?")
"""Of SLURM_STEP_TASKS_PER_NODE: `4(x2),3` is 4 tasks on each of two nodes, then 3 on one."""
_LOOPBACK = re.compile(r"localhost|127\.[\d.]+|::1")


@dataclass(frozen=True, slots=True)
class RankInfo:
    """Which of how many."""

    rank: int = 0
    world_size: int = 1


def global_rank() -> RankInfo | None:
    """Among all ranks of the job; None where nobody says."""
    return rank_from_torch() or _from_launcher() or _from_slurm()


def local_rank() -> RankInfo:
    """Among those on this machine, as far as it can be told; alone where it cannot."""
    if "LOCAL_WORLD_SIZE" in os.environ:
        found = RankInfo(_number("LOCAL_RANK", 0), _number("LOCAL_WORLD_SIZE"))
    else:
        found = _local_in_slurm() or _all_on_this_machine() or RankInfo()
    if not 0 <= found.rank < found.world_size:
        raise SettingError(f"local rank {found.rank} is not below the {found.world_size} ranks of this machine")
    return found


def slurm_cores() -> int | None:
    """What Slurm gave the job on this machine, whether or not it binds tasks to cores; None without Slurm."""
    return _number("SLURM_CPUS_ON_NODE") if _from_slurm() and "SLURM_CPUS_ON_NODE" in os.environ else None


def rank_from_torch() -> RankInfo | None:
    """Only if torch is there already: looking must not import it."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return RankInfo(distributed.get_rank(), distributed.get_world_size())


def _from_launcher() -> RankInfo | None:
    given = [name for name in ("RANK", "WORLD_SIZE") if name in os.environ]
    if len(given) == 1:
        missing = "WORLD_SIZE" if given == ["RANK"] else "RANK"
        raise SettingError(f"the environment says who we are only by half: {missing!r} is not set")
    return RankInfo(_number("RANK"), _number("WORLD_SIZE")) if given else None


def _from_slurm() -> RankInfo | None:
    """A task of a step of several; what a batch script or a shell (srun --pty) inherits is said of nobody."""
    if "SLURM_PTY_PORT" in os.environ or "SLURM_PROCID" not in os.environ:
        return None
    tasks = _number("SLURM_STEP_NUM_TASKS", 1)
    return RankInfo(_number("SLURM_PROCID"), tasks) if tasks > 1 else None


def _local_in_slurm() -> RankInfo | None:
    """If Slurm's tasks are the ranks, whoever said so."""
    tasks = _from_slurm()
    if tasks is None or (rank_from_torch() or _from_launcher() or tasks) != tasks:
        return None
    return RankInfo(_number("SLURM_LOCALID", 0), _tasks_here())


def _tasks_here() -> int:
    counts: list[int] = []
    for run in os.environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        if found := _RUN.fullmatch(run):
            counts += [int(found[1])] * min(int(found[2] or 1), 1 << 16)
    node = _number("SLURM_NODEID", 0)
    return counts[node] if node < len(counts) else _number("SLURM_NTASKS_PER_NODE", 1)


def _all_on_this_machine() -> RankInfo | None:
    """Ranks that meet at a loopback address are all here: Lightning, torch.multiprocessing and many a script do so."""
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

"""The number of DataLoader workers: the limits that a machine and a loader set, and the choice by the model.

Everything that leads to a `num_workers` uses this module, so that all of it names the same limit: `plan`
(setting_changes.py), `tune` and `plan_for` (tuner/search.py, tuner/tuning_run.py), `AdaptiveLoader`
(tuner/adaptive/controller.py), `doctor` (doctor/script.py) and plans for many ranks (fleet/rank_need.py).

The limits, each with the reason that a user is shown:

- processes: more than MAX_WORKERS never pay;
- cores: a worker occupies a core for the share of its time in which it computes. From CROWDED such shares per core on
  the workers mostly wait for each other. A loader whose computing share is not known is not limited by cores;
- memory and shared memory: the batches and the processes of all workers must fit (see memory.py);
- batches per epoch: a worker beyond them never gets one;
- an iterable dataset, which divides its samples (often whole shards) between a given number of workers only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import Self

from penstock.core.cgroups import free_bytes, quota_cores
from penstock.core.cores import rank_cores
from penstock.core.plan import TORCH_PREFETCH_FACTOR
from penstock.core.ranks import local_rank
from penstock.plan.memory import MemoryFit, MemoryNeed, fits, shared_free_bytes, torch_need
from penstock.plan.profiles import smallest_within
from penstock.recording.format import Machine

MAX_WORKERS = 64
"""More processes than this do not help against waiting (threads that read do), and starting them takes long."""
CROWDED = 4
"""Computing workers per core from which on they mostly wait for each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerResources:
    """The part of a machine that the workers of one loader may use."""

    cores: float | None = None
    """None: the cores set no limit."""
    free_bytes: int | None = None
    """Free memory, with what the workers that already run hold; None: not known, and not checked."""
    shared_free_bytes: int | None = None
    """Free shared memory; None: not known or not used, and not checked."""

    @classmethod
    def of_this_rank(cls) -> Self:
        """Measure this machine; the ranks that run on it divide its cores and its memory."""
        ranks, shared = local_rank().world_size, shared_free_bytes()
        return cls(
            cores=cores_of_this_rank(),
            free_bytes=free_bytes() // ranks,
            shared_free_bytes=None if shared is None else shared // ranks,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDemand:
    """The resources that each worker of a loader takes, and the number of workers that can share its data."""

    prefetch: int = TORCH_PREFETCH_FACTOR
    batch_bytes: int | None = None
    """None: not known, and memory sets no limit."""
    worker_bytes: int | None = None
    """Private memory of one worker; None: measured on this process."""
    pinned: bool = False
    computing_share: float | None = None
    """Share of the time for a batch that the worker computes; None: not known, and cores set no limit."""
    epoch_batches: int | None = None
    """Batches in an epoch; None: not known, or not a limit."""
    dataset_workers: int | None = None
    """Workers between which an iterable dataset divides its samples; None: any number."""
    dataset_reason: str = ""
    """The reason for `dataset_workers`, as a sentence; a general one where it is empty."""


@dataclass(frozen=True, slots=True)
class WorkerLimit:
    """The largest `num_workers` that is worth trying; 0 if memory is too small for a single worker."""

    workers: int
    reason: str = ""
    """The limit that is reached first, as a sentence; empty if it is MAX_WORKERS alone."""
    runnable: int = MAX_WORKERS
    """The largest number that can run at all: with more, memory would not suffice or samples would be repeated."""

    @property
    def note(self) -> str:
        """The reason if more workers cannot run at all; a limit beyond which they only do not help needs no note."""
        return self.reason if self.workers == self.runnable else ""


def machine_cores(machine: Machine) -> float:
    """Return the cores that processes of a recorded machine may use: the affinity mask, cut to the CPU quota."""
    usable, quota = max(1, machine.usable_cores), machine.quota_cores
    return float(min(usable, quota) if quota is not None and quota > 0 else usable)


def cores_of_this_rank() -> float:
    """Return the cores that the loader of this rank may use; a CPU quota may be a fraction of a core."""
    quota, cores = quota_cores(), float(rank_cores())
    return cores if quota is None else min(cores, quota)


# -- limits --------------------------------------------------------------------------------------------------------


def worker_limit(resources: WorkerResources, demand: WorkerDemand, *, memory_share: float = 1.0) -> WorkerLimit:
    """Return the lowest of the limits in the module docstring; `memory_share` of the free memory may be used."""
    hard = [WorkerLimit(MAX_WORKERS), *_dataset_limit(demand), *_memory_limit(resources, demand, memory_share)]
    soft = [*_batches_limit(demand), *_cores_limit(resources, demand)]
    lowest = min((*hard, *soft), key=lambda limit: limit.workers)
    return replace(lowest, runnable=min(limit.workers for limit in hard))


def _dataset_limit(demand: WorkerDemand) -> Iterator[WorkerLimit]:
    if demand.dataset_workers is not None:
        count = max(1, demand.dataset_workers)
        reason = demand.dataset_reason or f"The dataset divides its samples between {count} workers only"
        yield WorkerLimit(count, reason)


def _memory_limit(resources: WorkerResources, demand: WorkerDemand, share: float) -> Iterator[WorkerLimit]:
    reason = ""
    for workers in range(MAX_WORKERS, 0, -1):
        fit = memory_fit(resources, demand, workers, share)
        if fit is None or fit:
            break
        reason = f"{workers} workers would not fit: it {fit.text}"
    else:
        workers = 0
    if reason:
        yield WorkerLimit(workers, reason)


def _batches_limit(demand: WorkerDemand) -> Iterator[WorkerLimit]:
    if count := demand.epoch_batches:
        yield WorkerLimit(count, f"An epoch has {count} batches: more workers than that get none")


def _cores_limit(resources: WorkerResources, demand: WorkerDemand) -> Iterator[WorkerLimit]:
    if resources.cores is None or not demand.computing_share:
        return
    crowded = max(2, ceil(CROWDED * resources.cores / demand.computing_share))
    if crowded <= MAX_WORKERS:
        yield WorkerLimit(
            crowded - 1,
            f"{crowded} workers that compute {demand.computing_share:.0%} of their time "
            f"crowd {resources.cores:g} cores",
        )


def memory_need(demand: WorkerDemand, workers: int) -> MemoryNeed | None:
    """Return the memory that so many workers need; None where the size of a batch is not known."""
    if demand.batch_bytes is None:
        return None
    return torch_need(
        workers=workers,
        prefetch=demand.prefetch,
        batch_bytes=demand.batch_bytes,
        worker_bytes=demand.worker_bytes,
        pinned=demand.pinned,
    )


def memory_fit(
    resources: WorkerResources, demand: WorkerDemand, workers: int, memory_share: float = 1.0
) -> MemoryFit | None:
    """Return whether so many workers fit into memory; None where the need or the free memory is not known."""
    need = memory_need(demand, workers)
    if need is None or resources.free_bytes is None:
        return None
    return fits(need, resources.free_bytes, shared_free=resources.shared_free_bytes, share=memory_share)


# -- the choice ----------------------------------------------------------------------------------------------------


def candidate_counts(limit: int) -> tuple[int, ...]:
    """Return numbers from 0 to `limit`: every one up to 8, then steps of a quarter, because rates level off."""
    counts = list(range(min(limit, 8) + 1))
    while counts[-1] < limit:
        counts.append(min(limit, counts[-1] * 5 // 4))
    return tuple(counts)


def choose_worker_count(rate: Callable[[int], float], limit: int, tolerance: float, *, least: int = 0) -> int:
    """Return the smallest number from `least` to `limit` whose rate is within `tolerance` of the best.

    `rate` gives the batches per second for a number of workers, by the model.
    """
    return smallest_within(rate, candidate_counts(max(least, limit))[least:], tolerance)


def workers_to_keep_up(batch_s: float, step_s: float) -> int:
    """Return the number of workers W whose rate W / batch_s exceeds one batch per step, at most MAX_WORKERS."""
    return min(MAX_WORKERS, ceil(batch_s / step_s) + 1)

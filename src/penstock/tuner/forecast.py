"""What the model is told before anything else is run, and how many workers may be tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from penstock.core.cgroups import quota_cores
from penstock.core.cores import rank_cores
from penstock.core.ranks import local_rank
from penstock.model.workload import Workload
from penstock.plan.memory import fits, shared_free_bytes, torch_need
from penstock.tuner.loader_copy import is_iterable
from penstock.tuner.measure import StepCost
from penstock.tuner.result import PREFETCH, Setting
from penstock.tuner.search import model_rate
from penstock.tuner.trials import SettingTrials
from penstock.tuner.worker_cost import WorkerCost

MOST_WORKERS = 64
"""Beyond that nobody gains, and starting them takes longer than there is time."""


def workload_of(pattern: DataLoader[Any], service: WorkerCost, cost: StepCost) -> Workload:
    """One worker's batches, for the model to give to more of them."""
    quota, cores = quota_cores(), float(rank_cores())
    return Workload(
        workers=1,
        prefetch=PREFETCH,
        in_order=bool(getattr(pattern, "in_order", True)),
        cores=cores if quota is None else min(cores, quota),
        cpu_s=service.cpu_s + service.sending_s,
        alone_s=service.waiting_s,
        handover_s=np.full(1, service.handover_s),
        step_s=np.full(1, cost.step_s),
        step_cpu_s=np.full(1, cost.cpu_s),
        worker=np.zeros(len(service.cpu_s), np.int64),
    )


def expected(workload: Workload, service: WorkerCost, setting: Setting) -> float:
    """Batches per second, by the model. Who makes batches himself has none to send."""
    if not setting.workers:
        return model_rate(workload.with_(cpu_s=service.cpu_s), setting)
    return model_rate(workload, setting)


@dataclass(frozen=True, slots=True)
class WorkerLimit:
    """How many workers may be tried, and what holds them down, if anything does."""

    most: int
    why: str = ""


def worker_limit(trials: SettingTrials, service: WorkerCost, share: float) -> WorkerLimit:
    """As many as that share of the memory and, for an iterable dataset, its way of dealing samples out allow.

    Ranks of one machine divide its memory.
    """
    if is_iterable(trials.pattern) and (reason := trials.not_dealt()):
        return WorkerLimit(1, reason)
    ranks, shared = local_rank().world_size, shared_free_bytes()
    why = ""
    for most in range(MOST_WORKERS, 0, -1):
        need = torch_need(
            workers=most,
            prefetch=PREFETCH,
            batch_bytes=service.batch_bytes,
            worker_bytes=service.worker_bytes,
            pinned=bool(trials.pattern.pin_memory),
        )
        fit = fits(need, shared_free=None if shared is None else shared // ranks, share=share / ranks)
        if fit:
            return WorkerLimit(most, why)
        why = f"{most} workers would not fit: it {fit.sentence}"
    return WorkerLimit(1, why)

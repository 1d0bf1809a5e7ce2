"""Which numbers of workers to measure, and which of the measured settings to take. Pure: rates in, settings out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from penstock.core.cgroups import quota_cores
from penstock.core.cores import rank_cores
from penstock.core.ranks import local_rank
from penstock.model.workload import Workload
from penstock.plan.memory import fits, shared_free_bytes, torch_need
from penstock.plan.profiles import smallest_within
from penstock.plan.worker_count import candidate_counts as counts
from penstock.tuner.loader_copy import is_iterable
from penstock.tuner.measure import StepCost
from penstock.tuner.result import PREFETCH, Setting
from penstock.tuner.trials import SettingTrials
from penstock.tuner.worker_cost import WorkerCost

STRIDE = 1.5
"""From one number of workers to the next, until the best is between two others."""
WIDE = 0.28
"""Between two numbers that are equally good and such a part apart, a better one may hide."""
NEAR = 8
"""Numbers of workers that are less than such a part apart are not told apart: below 16, every number is."""
DEPTHS = (4, 8, 16)
"""Prefetch factors to try against uneven batches."""
UNEVEN = 0.03
"""The model's gain from which on a deeper prefetch is tried at all."""
ORDER_WORTH = 0.05
"""The model's gain, over the best setting that keeps the order, from which on giving it up is tried."""


def model_guess(workload: Workload, most: int, rate_tolerance: float) -> int:
    """Where to begin: the smallest number of workers that the model holds to be as good as the best, 1 at least."""
    return smallest_within(
        lambda workers: workload.replace(workers=workers).steady_rate, counts(most)[1:], rate_tolerance
    )


def knee(rates: Mapping[int, float], rate_tolerance: float) -> int:
    """The smallest number whose rate is within `rate_tolerance` of the best."""
    return smallest_within(rates.__getitem__, rates, rate_tolerance, refine=False)


def next_workers(measured: Mapping[int, float], guess: int, most: int, rate_tolerance: float) -> int | None:
    """The number to measure next, given the rates at others (0 where one failed); None where the answer is known.

    As in a golden-section search the best is first bracketed, outwards from the model's guess, then closed in on. But
    on a plateau, where noise decides which is best, the way is down: of equals the smallest is wanted.
    """
    known = {workers: rate for workers, rate in measured.items() if workers > 0}
    guess = min(guess, most)
    if not known:
        return guess
    best = max(known, key=lambda workers: (known[workers], -workers))
    enough = knee(known, rate_tolerance)
    above = min((workers for workers in known if workers > enough), default=None)
    if enough == best < most and above is None:
        return min(most, ceil(best * STRIDE))
    below = max((workers for workers in known if workers < enough), default=0)
    if not below and enough > 1:  # a right guess is seen from its neighbour; from a wrong one the steps grow
        return max(1, enough - max(_near(enough), 2 * (guess - enough)))
    gaps = [(enough / max(1, below), below, enough)] if enough - below > _near(enough) else []
    if above is not None and above - enough > max(_near(enough), 0 if enough == best else WIDE * enough):
        gaps.append((above / enough, enough, above))
    if not gaps:
        return None
    _, low, high = max(gaps)
    return _between(low, high)


def _near(workers: int) -> int:
    return max(1, workers // NEAR)


def _between(low: int, high: int) -> int:
    """By their ratio, as rates go with it."""
    return min(high - 1, max(low + 1, round(sqrt(max(1, low) * high))))


def variants(workload: Workload, chosen: Setting, *, deeper: bool = True, loose: bool = True) -> tuple[Setting, ...]:
    """A deeper prefetch, batches out of order: where the simulator says that batches are uneven enough to try it."""
    if not chosen.workers:
        return ()
    found = []
    best = model_rate(workload, chosen)
    deep = {depth: model_rate(workload, Setting(chosen.workers, depth)) for depth in DEPTHS if deeper}
    if deep and max(deep.values()) >= best * (1 + UNEVEN):
        found.append(Setting(chosen.workers, knee(deep, UNEVEN / 2)))
        best = max(deep.values())
    out_of_order = Setting(chosen.workers, in_order=False)
    if loose and model_rate(workload, out_of_order) >= best * (1 + ORDER_WORTH):
        found.append(out_of_order)
    return tuple(found)


def model_rate(workload: Workload, setting: Setting) -> float:
    """Batches per second."""
    in_order = setting.in_order and workload.in_order
    return workload.replace(workers=setting.workers, prefetch=setting.prefetch, in_order=in_order).steady_rate


def choose(rates: Mapping[Setting, float], rate_tolerance: float, *, step_known: bool) -> Setting:
    """The cheapest setting within `rate_tolerance` of the best, and not slower than torch's defaults.

    No workers at all are the cheapest. But then whatever the step takes comes on top, so where no step was measured
    they are taken only if every number of workers is slower.
    """
    enough = max(rates.values()) * (1 - rate_tolerance)
    default = rates.get(Setting(), 0.0)
    if step_known and default >= enough:
        return Setting()
    good = [setting for setting, rate in rates.items() if setting.workers and rate >= max(enough, default)]
    return min(good, key=Setting.cost, default=Setting())


def plain(rates: Mapping[Setting, float]) -> dict[int, float]:
    """By number of workers, of the settings with torch's own prefetch and order."""
    return {
        setting.workers: rate for setting, rate in rates.items() if setting.prefetch == PREFETCH and setting.in_order
    }


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
        latency_s=service.waiting_s,
        receive_s=np.full(1, service.handover_s),
        step_s=np.full(1, cost.step_s),
        step_cpu_s=np.full(1, cost.cpu_s),
        worker=np.zeros(len(service.cpu_s), np.int64),
    )


def expected(workload: Workload, service: WorkerCost, setting: Setting) -> float:
    """Batches per second, by the model. Who makes batches himself has none to send."""
    if not setting.workers:
        return model_rate(workload.replace(cpu_s=service.cpu_s), setting)
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
        why = f"{most} workers would not fit: it {fit.text}"
    return WorkerLimit(1, why)

"""The model's forecast for a loader, the numbers of workers to measure, and the choice between measured settings.

Everything here is computed from costs and rates; the runs themselves are in trials.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, sqrt
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from penstock.core.plan import TORCH_PREFETCH_FACTOR
from penstock.model.workload import Workload
from penstock.plan.profiles import smallest_within
from penstock.plan.worker_count import choose_worker_count, cores_of_this_rank
from penstock.tuner.measure import StepCost
from penstock.tuner.result import WorkerSettings
from penstock.tuner.worker_cost import WorkerCost

STRIDE = 1.5
"""Factor from one number of workers to the next, until the best lies between two others."""
WIDE = 0.28
"""Relative distance between two equally good numbers from which on a better one may lie between them."""
NEAR = 8
"""Numbers of workers that differ by less than 1/NEAR count as equal; below 16, every number is tried."""
PREFETCH_FACTORS = (4, 8, 16)
"""Prefetch factors to try against uneven batches."""
MIN_PREFETCH_GAIN = 0.03
"""Predicted gain from which on a deeper prefetch is tried."""
MIN_ORDER_GAIN = 0.05
"""Predicted gain over the best settings that keep the order, from which on giving up the order is tried."""


# -- the forecast --------------------------------------------------------------------------------------------------


def forecast_workload(template: DataLoader[Any], worker: WorkerCost, step: StepCost) -> Workload:
    """Return the batches of one worker as a workload, for the model to divide between more workers."""
    return Workload(
        workers=1,
        prefetch=TORCH_PREFETCH_FACTOR,
        in_order=bool(getattr(template, "in_order", True)),
        cores=cores_of_this_rank(),
        cpu_s=worker.cpu_s + worker.sending_s,
        latency_s=worker.waiting_s,
        receive_s=np.full(1, worker.receive_s),
        step_s=np.full(1, step.step_s),
        step_cpu_s=np.full(1, step.cpu_s),
        worker=np.zeros(len(worker.cpu_s), np.int64),
    )


def forecast_rate(workload: Workload, worker: WorkerCost, setting: WorkerSettings) -> float:
    """Return the predicted batches per second; a main process that makes batches itself does not send them."""
    if not setting.workers:
        return model_rate(workload.replace(cpu_s=worker.cpu_s), setting)
    return model_rate(workload, setting)


def model_rate(workload: Workload, setting: WorkerSettings) -> float:
    """Return the batches per second of a workload with these settings."""
    in_order = setting.in_order and workload.in_order
    return workload.replace(workers=setting.workers, prefetch=setting.prefetch, in_order=in_order).steady_rate


# -- the search ----------------------------------------------------------------------------------------------------


def model_guess(workload: Workload, limit: int, rate_tolerance: float) -> int:
    """Return the number of workers to begin with: the model's choice, 1 at least."""
    return choose_worker_count(
        lambda workers: workload.replace(workers=workers).steady_rate, limit, rate_tolerance, least=1
    )


def knee(rates: Mapping[int, float], rate_tolerance: float) -> int:
    """Return the smallest number whose rate is within `rate_tolerance` of the best."""
    return smallest_within(rates.__getitem__, rates, rate_tolerance, refine=False)


def next_workers(measured: Mapping[int, float], guess: int, limit: int, rate_tolerance: float) -> int | None:
    """Return the number of workers to measure next, from the rates of others (0 where one failed); None when done.

    As in a golden-section search, the best number is first bracketed, outwards from the model's guess, and then the
    bracket is narrowed. On a plateau, where noise decides which rate is best, the search goes down: of equally good
    numbers the smallest is needed.
    """
    known = {workers: rate for workers, rate in measured.items() if workers > 0}
    guess = min(guess, limit)
    if not known:
        return guess
    best = max(known, key=lambda workers: (known[workers], -workers))
    enough = knee(known, rate_tolerance)
    above = min((workers for workers in known if workers > enough), default=None)
    if enough == best < limit and above is None:
        return min(limit, ceil(best * STRIDE))
    below = max((workers for workers in known if workers < enough), default=0)
    if not below and enough > 1:  # a right guess is confirmed by its neighbour; from a wrong one the steps grow
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
    """Return a number between the two at the middle of their ratio, to which rates are proportional."""
    return min(high - 1, max(low + 1, round(sqrt(max(1, low) * high))))


def variants(
    workload: Workload, chosen: WorkerSettings, *, deeper: bool = True, out_of_order: bool = True
) -> tuple[WorkerSettings, ...]:
    """Return a deeper prefetch and out-of-order delivery, where the simulation says that batches are uneven enough."""
    if not chosen.workers:
        return ()
    found = []
    best = model_rate(workload, chosen)
    rates = {depth: model_rate(workload, WorkerSettings(chosen.workers, depth)) for depth in PREFETCH_FACTORS if deeper}
    if rates and max(rates.values()) >= best * (1 + MIN_PREFETCH_GAIN):
        found.append(WorkerSettings(chosen.workers, knee(rates, MIN_PREFETCH_GAIN / 2)))
        best = max(rates.values())
    unordered = WorkerSettings(chosen.workers, in_order=False)
    if out_of_order and model_rate(workload, unordered) >= best * (1 + MIN_ORDER_GAIN):
        found.append(unordered)
    return tuple(found)


# -- the choice ----------------------------------------------------------------------------------------------------


def choose(rates: Mapping[WorkerSettings, float], rate_tolerance: float, *, step_known: bool) -> WorkerSettings:
    """Return the cheapest settings within `rate_tolerance` of the best that are not slower than torch's defaults.

    No workers at all are the cheapest. But then the time of the step is added, so where no step was measured they are
    chosen only if every number of workers is slower.
    """
    enough = max(rates.values()) * (1 - rate_tolerance)
    default = rates.get(WorkerSettings(), 0.0)
    if step_known and default >= enough:
        return WorkerSettings()
    good = [setting for setting, rate in rates.items() if setting.workers and rate >= max(enough, default)]
    return min(good, key=WorkerSettings.cost, default=WorkerSettings())


def rates_by_workers(rates: Mapping[WorkerSettings, float]) -> dict[int, float]:
    """Return the rates by number of workers, of the settings with torch's default prefetch and order."""
    return {
        setting.workers: rate
        for setting, rate in rates.items()
        if setting.prefetch == TORCH_PREFETCH_FACTOR and setting.in_order
    }

"""The same run with one thing changed: small functions from workload to workload.

The cost of the thing is the gain of the changed workload over the original.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from penstock.core.types import Bools, Floats
from penstock.errors import SettingError
from penstock.model.simulation_data import STAGES, batch_column
from penstock.model.workload import Workload, find_stragglers

# -- other settings, another machine -------------------------------------------------------------------------------


def with_workers(workload: Workload, workers: int) -> Workload:
    """Return the workload with another number of workers."""
    return workload.replace(workers=workers)


def overlap_with_workers(workload: Workload, workers: int) -> Workload:
    """Return the workload of a loop without workers, with so many workers that make the batches during its steps."""
    if workload.workers:
        raise SettingError(f"the workload has {workload.workers} workers already, which overlap with the loop")
    return with_workers(workload, workers)


def with_prefetch(workload: Workload, prefetch: int) -> Workload:
    """Return the workload with another number of batches requested ahead per worker."""
    return workload.replace(prefetch=prefetch)


def out_of_order(workload: Workload) -> Workload:
    """Return the workload with batches delivered in the order in which they are made."""
    return workload.replace(in_order=False)


def with_cores(workload: Workload, cores: float) -> Workload:
    """Return the workload with another number of cores."""
    return workload.replace(cores=cores)


def with_step(workload: Workload, step_s: ArrayLike) -> Workload:
    """Return the workload with other step times, one for all or one for each; the share that computes stays the
    same."""
    new = batch_column("step_s", step_s, len(workload))
    share = np.divide(workload.step_cpu_s, workload.step_s, out=np.zeros(len(workload)), where=workload.step_s > 0)
    return workload.replace(step_s=new, step_cpu_s=new * share)


# -- one cost removed ----------------------------------------------------------------------------------------------


def without_cpu(workload: Workload) -> Workload:
    """Return the workload with batches that need no computing."""
    return workload.replace(cpu_s=np.zeros(1))


def without_io(workload: Workload) -> Workload:
    """Return the workload with shared storage that delivers at once."""
    return workload.replace(io_s=np.zeros(1))


def without_latency(workload: Workload) -> Workload:
    """Return the workload without latencies and timers."""
    return workload.replace(latency_s=np.zeros(1))


def without_lock(workload: Workload) -> Workload:
    """Return the workload with the work under the lock done in parallel, each part taking as long as before."""
    return workload.replace(lock_s=np.zeros(1), latency_s=workload.latency_s + workload.lock_s)


def without_ipc(workload: Workload) -> Workload:
    """Return the workload with batches that cost nothing to receive."""
    return workload.replace(receive_s=np.zeros(1))


def without_competitors(workload: Workload) -> Workload:
    """Return the workload without processes outside the run on its cores."""
    return workload.replace(competitors=0.0)


def without_startup(workload: Workload) -> Workload:
    """Return the workload with epochs whose first batch is ready at once."""
    return workload.replace(startup_s=0.0)


def without_lag(workload: Workload, worker: int) -> Workload:
    """Return the workload with one worker's batches at the median cost of the others' batches."""
    batches = workload.worker == worker
    if batches.all() or not batches.any():
        return workload  # a resample may hold none of its batches, or no others to compare with
    return _with_work(workload, batches, np.median(workload.work[:, ~batches], axis=1))


def without_stragglers(workload: Workload) -> Workload:
    """Return the workload with stragglers at the median cost of the same worker's other batches."""
    stragglers = find_stragglers(workload)
    edited = workload
    for worker in np.unique(workload.worker[stragglers]):
        batches = workload.worker == worker
        typical = batches & ~stragglers if (batches & ~stragglers).any() else ~stragglers
        edited = _with_work(edited, batches & stragglers, np.median(workload.work[:, typical], axis=1))
    return edited


def _with_work(workload: Workload, batches: Bools, cost_s: Floats) -> Workload:
    work = workload.work.copy()
    work[:, batches] = cost_s[:, None]
    return workload.replace(**dict(zip(STAGES, work, strict=True)))

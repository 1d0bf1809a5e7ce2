"""The same run with one thing otherwise: small functions from workload to workload.

What the rate of the edited run gains is what the thing cost.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.errors import SettingError
from penstock.model.simulation_input import PARTS, Floats, column
from penstock.model.workload import Workload, stragglers

# -- other settings, another machine -------------------------------------------------------------------------------


def with_workers(workload: Workload, workers: int) -> Workload:
    """More or fewer."""
    return workload.with_(workers=workers)


def overlapped(workload: Workload, workers: int) -> Workload:
    """A loop that makes its batches itself, with so many workers to do it meanwhile."""
    if workload.workers:
        raise SettingError(f"{workload.workers} workers overlap with the loop already")
    return with_workers(workload, workers)


def with_prefetch(workload: Workload, prefetch: int) -> Workload:
    """More or less ahead per worker."""
    return workload.with_(prefetch=prefetch)


def out_of_order(workload: Workload) -> Workload:
    """Batches in the order in which they are made."""
    return workload.with_(in_order=False)


def with_cores(workload: Workload, cores: float) -> Workload:
    """More or fewer."""
    return workload.with_(cores=cores)


def with_step(workload: Workload, step_s: ArrayLike) -> Workload:
    """Another time per step, one for all or one each; it computes the same share of it as before."""
    new = column("step_s", step_s, len(workload))
    share = np.divide(workload.step_cpu_s, workload.step_s, out=np.zeros(len(workload)), where=workload.step_s > 0)
    return workload.with_(step_s=new, step_cpu_s=new * share)


# -- one cost gone -------------------------------------------------------------------------------------------------


def without_cpu(workload: Workload) -> Workload:
    """Making batches takes no computing."""
    return workload.with_(cpu_s=np.zeros(1))


def without_io(workload: Workload) -> Workload:
    """Storage that answers at once."""
    return workload.with_(io_s=np.zeros(1))


def without_alone(workload: Workload) -> Workload:
    """No latency, no timers."""
    return workload.with_(alone_s=np.zeros(1))


def without_lock(workload: Workload) -> Workload:
    """What was done under the lock takes as long as before, side by side."""
    return workload.with_(serial_s=np.zeros(1), alone_s=workload.alone_s + workload.serial_s)


def without_ipc(workload: Workload) -> Workload:
    """Batches change hands for nothing."""
    return workload.with_(handover_s=np.zeros(1))


def without_burners(workload: Workload) -> Workload:
    """Nobody else on the cores."""
    return workload.with_(burners=0.0)


def without_startup(workload: Workload) -> Workload:
    """Passes that begin at once."""
    return workload.with_(startup_s=0.0)


def without_lag(workload: Workload, worker: int) -> Workload:
    """One worker's batches cost what the others' cost at the median."""
    mine = workload.worker == worker
    if mine.all() or not mine.any():
        return workload  # a resample may hold none of its batches, or no others to compare with
    return _with_work(workload, mine, np.median(workload.work[:, ~mine], axis=1))


def without_stragglers(workload: Workload) -> Workload:
    """They cost what the others of their worker cost at the median."""
    slow = stragglers(workload)
    found = workload
    for worker in np.unique(workload.worker[slow]):
        mine = workload.worker == worker
        usual = mine & ~slow if (mine & ~slow).any() else ~slow
        found = _with_work(found, mine & slow, np.median(workload.work[:, usual], axis=1))
    return found


def _with_work(workload: Workload, which: NDArray[np.bool_], cost_s: Floats) -> Workload:
    work = workload.work.copy()
    work[:, which] = cost_s[:, None]
    return workload.with_(**dict(zip(PARTS, work, strict=True)))

"""A run as input of the simulator: what each batch cost, and which worker made it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isinf
from typing import Any, Self

import numpy as np

from penstock.core.types import Bools, Floats, Ints
from penstock.errors import SettingError
from penstock.model.bounds import Demands
from penstock.model.simulation_data import CPU, LOCK, STAGES, BatchCosts, SimulatedRun, WorkerPool, batch_column
from penstock.model.simulator import simulate

LAG_FACTOR = 1.25
"""A worker lags if three quarters of its batches take more than this multiple of what the others' batches take."""
LAG_BATCHES_MIN = 3
"""Fewer batches of a worker do not show whether it lags."""
WARM_UP_ROUNDS = 4
"""The start is left out of a rate: this multiple of the outstanding tasks, or the workload once if that is less."""
STRAGGLER_MEDIANS = 2.0
"""A batch is a straggler if it takes more than this multiple of the median..."""
STRAGGLER_DEVIATIONS = 5.0
"""...and lies this number of standard deviations, by the median absolute deviation, above the median."""
MAD_TO_STD = 1.4826
"""The standard deviation of a normal distribution, as a multiple of its median absolute deviation."""

Lags = dict[int, Floats]
"""Seconds by which each worker that lags takes longer for any batch, by stage."""
_COLUMNS = (*STAGES, "receive_s", "step_s", "step_cpu_s")


def _zeros() -> Floats:
    return np.zeros(1)


@dataclass(frozen=True, eq=False, kw_only=True)
class Workload:
    """The steady part of a run, batch by batch: seconds as they would be if nothing else ran at the same time.

    A column of one number stands for all batches.
    """

    workers: int
    """Number of workers; 0 if the training loop makes its batches itself."""
    prefetch: int
    in_order: bool
    cores: float
    """Number of cores that the workers and the loop may use."""
    cpu_s: Floats
    """Seconds in which the worker computes."""
    latency_s: Floats
    """Seconds in which the worker waits for what other workers do not slow down: latency, a timer, the network."""
    receive_s: Floats
    """Seconds in which the main process receives the batch; all of it is computing."""
    step_s: Floats
    """Seconds of the training loop's own work."""
    worker: Ints
    """The worker that made the batch; -1: the main process."""
    io_s: Floats = field(default_factory=_zeros)
    """Seconds of reading from storage that all workers share."""
    lock_s: Floats = field(default_factory=_zeros)
    """Seconds in which the worker holds a lock that all workers share, without the waiting for it."""
    step_cpu_s: Floats = field(default_factory=_zeros)
    """Seconds of the step that need a core, which workers may want too."""
    step_threads: float = 1.0
    """Number of threads that compute in a step, where it needs a core."""
    competitors: float = 0.0
    """Number of processes outside the run that always want one of the cores."""
    startup_s: float = 0.0
    """Seconds waited at the beginnings of epochs, all epochs together."""

    def __post_init__(self) -> None:
        count = len(self.worker)
        if count < 1 or not 0 <= self.startup_s < inf:
            raise SettingError(f"{count} batches with a start-up of {self.startup_s} s are no workload")
        for name in _COLUMNS:
            values = np.asarray(getattr(self, name))
            object.__setattr__(self, name, batch_column(name, values[0] if values.shape == (1,) else values, count))

    def __len__(self) -> int:
        return len(self.worker)

    def replace(self, **changes: Any) -> Self:
        """Return the same workload with other values of these fields."""
        return dataclasses.replace(self, **changes)

    def select(self, batches: Ints) -> Self:
        """Return the workload of these batches only, in this order."""
        columns = {name: getattr(self, name)[batches] for name in (*_COLUMNS, "worker")}
        return self.replace(startup_s=self.startup_s * len(batches) / len(self), **columns)

    # -- work of the workers -------------------------------------------------------------------------------------

    @cached_property
    def work(self) -> Floats:
        """Seconds of the workers: a row per stage, a column per batch."""
        return np.stack([getattr(self, name) for name in STAGES])

    @cached_property
    def lags(self) -> Lags:
        """The lags of workers whose batches cost more because of the worker, not because of what is in them."""
        return _find_lags(self.work, self.worker)

    @cached_property
    def work_without_lags(self) -> Floats:
        """The `work` as it would be if no worker lagged."""
        work = self.work.copy()
        for worker, lag_s in self.lags.items():
            work[:, self.worker == worker] -= lag_s[:, None]
        return np.asarray(np.maximum(work, 0.0))

    def worker_pool(self) -> WorkerPool:
        """Return the workers; if the number of workers was changed, the workers with the largest lags are kept."""
        largest = sorted(self.lags.values(), key=lambda lag_s: -float(lag_s.sum()))[: self.workers]
        lag = np.zeros((len(STAGES), self.workers if largest else 0))
        for worker, lag_s in enumerate(largest):
            lag[:, worker] = lag_s
        return WorkerPool(
            self.workers, self.prefetch, self.in_order, self.cores, self.competitors, self.step_threads, lag=lag
        )

    # -- simulation ----------------------------------------------------------------------------------------------

    def simulate(self, steps: int, prefetched: int = 0) -> SimulatedRun:
        """Simulate so many steps from a cold start; `prefetched` batches follow the last step's.

        If the workload has fewer batches, they are repeated.
        """
        which = np.resize(np.arange(len(self)), steps + prefetched)
        batches = BatchCosts(
            self.work_without_lags[:, which], self.receive_s[which], self.step_s[which], self.step_cpu_s[which]
        )
        return simulate(batches, self.worker_pool(), steps)

    @cached_property
    def steady_rate(self) -> float:
        """Batches per second once the delivery is steady, over whole windows that hold every batch.

        The first batches come in a burst or after a wait and are left out: WARM_UP_ROUNDS·W·P of them, or the workload
        once if that is less, but at least W·P. No batch is lost by that, because the workload is repeated.
        """
        pool = self.worker_pool()
        warm_up = max(pool.outstanding_tasks, min(len(self), WARM_UP_ROUNDS * pool.outstanding_tasks))
        skipped = _round_up(warm_up, pool.window)
        steps = skipped + _round_up(len(self), pool.window) + 1
        return self.simulate(steps, prefetched=pool.outstanding_tasks).rate(pool.window, skip=skipped)

    def rate(self) -> float:
        """Return the batches per second, the beginnings of epochs included."""
        seconds = len(self) / self.steady_rate + self.startup_s
        return len(self) / seconds if seconds > 0 else inf

    def demands(self) -> Demands:
        """Return the mean demands on each resource; like in the simulator, steps count as the main process's."""
        service_s, step_s = float(self.work.sum(axis=0).mean()), float(self.step_s.mean())
        if not self.workers:
            return Demands(workers=0, main_s=service_s + step_s)
        return Demands(
            workers=self.workers,
            service_s=service_s,
            cores=self.cores,
            cpu_s=float(self.work[CPU].mean() + self.receive_s.mean() + self.step_threads * self.step_cpu_s.mean()),
            lock_s=float(self.work[LOCK].mean()),
            main_s=step_s + float(self.receive_s.mean()),
        )


def gain(before: Workload, after: Workload) -> float:
    """Return the relative increase in batches per second: 0.5 is half as many again; 0 if `before` takes no time."""
    return 0.0 if isinf(before.rate()) else after.rate() / before.rate() - 1


def find_stragglers(workload: Workload) -> Bools:
    """Return which batches cost far more than others; those of a lagging worker are judged without its lag."""
    total = workload.work_without_lags.sum(axis=0)
    median = float(np.median(total))
    deviation_s = MAD_TO_STD * float(np.median(np.abs(total - median)))
    return np.asarray(total > max(STRAGGLER_MEDIANS * median, median + STRAGGLER_DEVIATIONS * deviation_s))


def _find_lags(work: Floats, worker: Ints) -> Lags:
    """Return the lags, from a row per stage and a column per batch. If most workers are slow, none of them lags."""
    total = work.sum(axis=0)
    order = np.lexsort((total, worker))
    workers, first, counts = np.unique(worker[order], return_index=True, return_counts=True)
    ranked = total[order]
    medians = ranked[first + counts // 2]
    typical = np.sort(medians)[(len(workers) - 1) // 2]
    lagging = (ranked[first + counts // 4] > LAG_FACTOR * typical) & (counts >= LAG_BATCHES_MIN)
    if not lagging.any():
        return {}
    others = np.median(work[:, ~np.isin(worker, workers[lagging])], axis=1)
    return {
        int(number): np.maximum(np.median(work[:, worker == number], axis=1) - others, 0.0)
        for number in workers[lagging]
    }


def _round_up(count: int, window: int) -> int:
    return -(-count // window) * window

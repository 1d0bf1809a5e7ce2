"""A simulator of torch's DataLoader and the training loop that iterates over it.

With W workers and a prefetch factor of P, batch i is assigned to worker i mod W. W·P tasks are assigned at the start,
and one more, to the same worker, whenever a batch of that worker is received: in the order of the batches, or with
in_order=False in the order in which they are made. A worker processes its tasks one after the other, each in four
stages: it waits for answers (latency, timers), reads from storage that all workers share, holds a lock that all share,
and computes on cores that all share with the training loop and with processes outside the run.
"""

from __future__ import annotations

import numpy as np

from penstock.core.types import Floats
from penstock.errors import SettingError
from penstock.model.event_simulator import EventSimulation
from penstock.model.simulation_data import CPU, IO, LOCK, BatchCosts, SimulatedRun, WorkerPool


def simulate(batches: BatchCosts, pool: WorkerPool, steps: int | None = None) -> SimulatedRun:
    """Simulate so many steps (by default one for each batch); further batches are those prefetched at the end."""
    steps = len(batches) if steps is None else steps
    if not 1 <= steps <= len(batches):
        raise SettingError(f"{steps} steps cannot be made of {len(batches)} batches")
    if pool.workers == 0:
        return _without_workers(batches, pool, steps)
    if pool.in_order and not _is_contended(batches, pool):
        return _without_contention(batches, pool, steps)
    return EventSimulation(batches, pool, steps).run()


def _is_contended(batches: BatchCosts, pool: WorkerPool) -> bool:
    """Return whether processes can wait for each other at a shared resource."""
    if batches.work[IO].any() or batches.work[LOCK].any() or pool.lag[IO].any() or pool.lag[LOCK].any():
        return True
    loop = pool.step_threads if batches.step_cpu_s.any() else int(batches.receive_s.any())
    computing = pool.workers if batches.work[CPU].any() or pool.lag[CPU].any() else 0
    return computing + loop > 0 and computing + loop + pool.competitors > pool.cores


def _without_workers(batches: BatchCosts, pool: WorkerPool, steps: int) -> SimulatedRun:
    """Simulate a loop that makes its batches itself; only processes outside the run can slow it down."""
    slowdown = pool.wake_up_slowdown(pool.competitors) / pool.core_share(1)
    work = batches.work[:, :steps].copy()
    work[CPU] *= slowdown
    work[IO] /= pool.storage(1)
    durations = np.stack([work.sum(axis=0), batches.step_s[:steps] + batches.step_cpu_s[:steps] * (slowdown - 1)])
    ends = np.cumsum(durations.T.ravel())
    received, stepped = ends[0::2], ends[1::2]
    requested = np.concatenate([[0.0], stepped[:-1]])
    finished = np.full(len(batches), np.inf)
    finished[:steps] = received
    workers = np.full(len(batches), -1)
    return SimulatedRun(requested, received, np.arange(steps), finished, workers, float(stepped[-1]))


def _without_contention(batches: BatchCosts, pool: WorkerPool, steps: int) -> SimulatedRun:
    """Simulate in-order delivery of workers that share nothing.

    A worker begins a batch as soon as the batch is assigned and its previous batch is made.
    """
    work_s = _work_with_lag(batches, pool).tolist()
    receive_s, step_s = batches.receive_s.tolist(), batches.step_s.tolist()
    count, workers, tasks = len(work_s), pool.workers, pool.outstanding_tasks
    free_s = [0.0] * workers  # when each worker has made its last batch
    assigned_s = [0.0] * tasks  # when each of the outstanding tasks was assigned
    finished, requested, received = [np.inf] * count, [0.0] * steps, [0.0] * steps
    now = 0.0
    for batch in range(steps):
        worker = batch % workers
        done = free_s[worker] = max(assigned_s[batch % tasks], free_s[worker]) + work_s[batch]
        finished[batch], requested[batch] = done, now
        now = max(now, done) + receive_s[batch]
        received[batch] = assigned_s[batch % tasks] = now
        now += step_s[batch]
    for batch in range(steps, min(count, steps + tasks)):
        worker = batch % workers
        free_s[worker] = max(assigned_s[batch % tasks], free_s[worker]) + work_s[batch]
        finished[batch] = free_s[worker] if free_s[worker] <= now else np.inf
    made = np.array(finished)
    makers = np.where(made < np.inf, np.arange(count) % workers, -1)
    return SimulatedRun(np.array(requested), np.array(received), np.arange(steps), made, makers, now)


def _work_with_lag(batches: BatchCosts, pool: WorkerPool) -> Floats:
    total = np.asarray(batches.work.sum(axis=0))
    if pool.lag.shape[1]:
        total = total + np.resize(pool.lag.sum(axis=0), len(total))
    return total

"""A simulator of torch's DataLoader and the loop that takes from it.

Batch i belongs to worker i mod W; W·P tasks are given out at the start, and one more, to the same worker, whenever one
of its batches is yielded: in the order of the batches, or with in_order=False in the order in which they are made.
A worker does its tasks one after the other: it waits alone (latency, timers), reads from the storage that all share,
holds the lock that all share, computes on the cores that all share with the loop and with strangers.
"""

from __future__ import annotations

import numpy as np

from penstock.errors import SettingError
from penstock.model.event_simulator import EventSimulation
from penstock.model.simulation_input import CPU, IO, SERIAL, BatchCosts, Floats, SimulatedRun, WorkerPool


def simulate(batches: BatchCosts, crew: WorkerPool, steps: int | None = None) -> SimulatedRun:
    """Run the loop for so many steps (all there are batches for, unless told): the rest is ahead of it at the end."""
    steps = len(batches) if steps is None else steps
    if not 1 <= steps <= len(batches):
        raise SettingError(f"{steps} steps cannot be made of {len(batches)} batches")
    if crew.workers == 0:
        return _inline(batches, crew, steps)
    if crew.in_order and not _contended(batches, crew):
        return _unshared(batches, crew, steps)
    return EventSimulation(batches, crew, steps).run()


def _contended(batches: BatchCosts, crew: WorkerPool) -> bool:
    """Whether anybody can be in anybody's way."""
    if batches.work[IO].any() or batches.work[SERIAL].any() or crew.lag[IO].any() or crew.lag[SERIAL].any():
        return True
    loop = 1 if batches.step_cpu_s.any() or batches.handover_s.any() else 0
    computing = crew.workers if batches.work[CPU].any() or crew.lag[CPU].any() else 0
    return computing + loop > 0 and computing + loop + crew.burners > crew.cores


def _inline(batches: BatchCosts, crew: WorkerPool, steps: int) -> SimulatedRun:
    """No workers: the loop makes its batches itself, and has only strangers in its way."""
    slower = crew.crowding(crew.burners) / crew.core_share(1)
    work = batches.work[:, :steps].copy()
    work[CPU] *= slower
    work[IO] /= crew.storage(1)
    took = np.stack([work.sum(axis=0), batches.step_s[:steps] + batches.step_cpu_s[:steps] * (slower - 1)])
    ends = np.cumsum(took.T.ravel())
    yielded, stepped = ends[0::2], ends[1::2]
    asked = np.concatenate([[0.0], stepped[:-1]])
    finished = np.full(len(batches), np.inf)
    finished[:steps] = yielded
    return SimulatedRun(asked, yielded, np.arange(steps), finished, np.full(len(batches), -1), float(stepped[-1]))


def _unshared(batches: BatchCosts, crew: WorkerPool, steps: int) -> SimulatedRun:
    """In order, with nobody in anybody's way: a batch begins when it is given and its worker's last one is made."""
    works = _total(batches, crew).tolist()
    handover, step = batches.handover_s.tolist(), batches.step_s.tolist()
    count, workers, tasks = len(works), crew.workers, crew.tasks
    free = [0.0] * workers
    given = [0.0] * tasks
    finished, asked, yielded = [np.inf] * count, [0.0] * steps, [0.0] * steps
    now = 0.0
    for at in range(steps):
        who = at % workers
        done = free[who] = max(given[at % tasks], free[who]) + works[at]
        finished[at], asked[at] = done, now
        now = max(now, done) + handover[at]
        yielded[at] = given[at % tasks] = now
        now += step[at]
    for at in range(steps, min(count, steps + tasks)):
        who = at % workers
        free[who] = max(given[at % tasks], free[who]) + works[at]
        finished[at] = free[who] if free[who] <= now else np.inf
    made = np.array(finished)
    makers = np.where(made < np.inf, np.arange(count) % workers, -1)
    return SimulatedRun(np.array(asked), np.array(yielded), np.arange(steps), made, makers, now)


def _total(batches: BatchCosts, crew: WorkerPool) -> Floats:
    total = np.asarray(batches.work.sum(axis=0))
    if crew.lag.shape[1]:
        total = total + np.resize(crew.lag.sum(axis=0), len(total))
    return total

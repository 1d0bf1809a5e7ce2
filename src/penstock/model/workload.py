"""A run as the model takes it: what each batch cost and who made it; `edits` has it with one thing otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, isinf
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from penstock.errors import SettingError
from penstock.model.bounds import Demands
from penstock.model.simulation_input import (
    CPU,
    PARTS,
    SERIAL,
    BatchCosts,
    Floats,
    Ints,
    SimulatedRun,
    WorkerPool,
    column,
)
from penstock.model.simulator import simulate

LAGS = 1.25
"""A worker lags if three quarters of its batches take more than so many times what the others' take."""
LAG_BATCHES = 3
"""Fewer say nothing about their worker."""

Lags = dict[int, Floats]
"""Seconds longer for any batch, by part of the work, of each worker that lags."""


def find_lags(work: Floats, worker: Ints) -> Lags:
    """From a row per part of the work and a column per batch. Where most are slow, nobody lags."""
    total = work.sum(axis=0)
    order = np.lexsort((total, worker))
    names, first, counts = np.unique(worker[order], return_index=True, return_counts=True)
    ranked = total[order]
    medians = ranked[first + counts // 2]
    usual = np.sort(medians)[(len(names) - 1) // 2]
    lagging = (ranked[first + counts // 4] > LAGS * usual) & (counts >= LAG_BATCHES)
    if not lagging.any():
        return {}
    others = np.median(work[:, ~np.isin(worker, names[lagging])], axis=1)
    return {int(name): np.maximum(np.median(work[:, worker == name], axis=1) - others, 0.0) for name in names[lagging]}


def take_off(work: Floats, worker: Ints, lags: Lags) -> Floats:
    """The work as it would be had nobody lagged."""
    plain = work.copy()
    for name, lag_s in lags.items():
        plain[:, worker == name] -= lag_s[:, None]
    return np.asarray(np.maximum(plain, 0.0))


WARM_UP = 4
"""Times the tasks that are out, or once the whole workload if that is less: then delivery has found its rhythm."""
STRAGGLES = 2.0
"""A batch straggles if it takes more than so many medians..."""
DEVIATIONS = 5.0
"""...and is so many standard deviations (by the median deviation) beyond the median."""

_COLUMNS = (*PARTS, "handover_s", "step_s", "step_cpu_s")


def _none() -> Floats:
    return np.zeros(1)


@dataclass(frozen=True, eq=False, kw_only=True)
class Workload:
    """The steady part of a run, batch by batch: seconds as they would be with nobody in the way.

    A column of one number means the same for every batch.
    """

    workers: int
    """0: the training loop makes its batches itself."""
    prefetch: int
    in_order: bool
    cores: float
    """That workers and loop may use."""
    cpu_s: Floats
    """Computing, of the worker."""
    alone_s: Floats
    """Waiting for what others do not make slower: latency, a timer, the network."""
    handover_s: Floats
    """Of the main process, to take the batch: all of it computing."""
    step_s: Floats
    worker: Ints
    """Who made it; -1: the main process."""
    io_s: Floats = field(default_factory=_none)
    """At the storage that all share."""
    serial_s: Floats = field(default_factory=_none)
    """Holding a lock that all share; waiting for it is not counted."""
    step_cpu_s: Floats = field(default_factory=_none)
    """Of the step, on a core that the workers may want too."""
    burners: float = 0.0
    """Processes of others that always want one of the cores."""
    startup_s: float = 0.0
    """Waited at the start of passes, all of them together."""

    def __post_init__(self) -> None:
        count = len(self.worker)
        if count < 1 or not 0 <= self.startup_s < inf:
            raise SettingError(f"{count} batches with a start-up of {self.startup_s} s are no workload")
        for name in _COLUMNS:
            values = np.asarray(getattr(self, name))
            object.__setattr__(self, name, column(name, values[0] if values.shape == (1,) else values, count))

    def __len__(self) -> int:
        return len(self.worker)

    def with_(self, **changes: Any) -> Self:
        """The same but for these fields."""
        return replace(self, **changes)

    def take(self, which: Ints) -> Self:
        """Of these batches only, in this order."""
        columns = {name: getattr(self, name)[which] for name in (*_COLUMNS, "worker")}
        return self.with_(startup_s=self.startup_s * len(which) / len(self), **columns)

    @cached_property
    def work(self) -> Floats:
        """Of the workers: a row per part, a column per batch."""
        return np.stack([getattr(self, name) for name in PARTS])

    @cached_property
    def lags_s(self) -> Lags:
        """Of the workers that lag: their batches cost more because of who made them, not because of what they are."""
        return find_lags(self.work, self.worker)

    @cached_property
    def plain_work(self) -> Floats:
        """`work` as it would be had nobody lagged."""
        return take_off(self.work, self.worker, self.lags_s)

    def crew(self) -> WorkerPool:
        """With other workers than the run had, those that lagged are still among them, the worst first."""
        worst = sorted(self.lags_s.values(), key=lambda lag_s: -float(lag_s.sum()))[: self.workers]
        lag = np.zeros((len(PARTS), self.workers if worst else 0))
        for at, lag_s in enumerate(worst):
            lag[:, at] = lag_s
        return WorkerPool(self.workers, self.prefetch, self.in_order, self.cores, self.burners, lag=lag)

    def trace(self, steps: int, ahead: int = 0) -> SimulatedRun:
        """So many steps from a cold start; `ahead` batches follow the last. Where all are used up they come again."""
        which = np.resize(np.arange(len(self)), steps + ahead)
        batches = BatchCosts(
            self.plain_work[:, which], self.handover_s[which], self.step_s[which], self.step_cpu_s[which]
        )
        return simulate(batches, self.crew(), steps)

    @cached_property
    def steady_rate(self) -> float:
        """Batches per second once delivery has found its rhythm, over whole windows that hold every batch.

        The first batches come in a burst or after a wait and are left out: WARM_UP·W·P of them, or one round of the
        workload if that is less, but at least W·P. None is lost by that, since the workload comes round again.
        """
        crew = self.crew()
        warm = _whole(max(crew.tasks, min(len(self), WARM_UP * crew.tasks)), crew.window)
        steps = warm + _whole(len(self), crew.window) + 1
        return self.trace(steps, ahead=crew.tasks).rate(crew.window, skip=warm)

    def rate(self) -> float:
        """Batches per second: at the steady rate, start-ups added."""
        seconds = len(self) / self.steady_rate + self.startup_s
        return len(self) / seconds if seconds > 0 else inf

    def demands(self) -> Demands:
        """On average, for the laws; the step is counted as the main process's, as the simulator does."""
        service_s, step_s = float(self.work.sum(axis=0).mean()), float(self.step_s.mean())
        if not self.workers:
            return Demands(workers=0, main_s=service_s + step_s)
        return Demands(
            workers=self.workers,
            service_s=service_s,
            cores=self.cores,
            cpu_s=float(self.work[CPU].mean() + self.handover_s.mean() + self.step_cpu_s.mean()),
            serial_s=float(self.work[SERIAL].mean()),
            main_s=step_s + float(self.handover_s.mean()),
        )


def _whole(count: int, window: int) -> int:
    return -(-count // window) * window


def gain(before: Workload, after: Workload) -> float:
    """More batches per second: 0.5 is half as many again. A run that took no time can gain none."""
    return 0.0 if isinf(before.rate()) else after.rate() / before.rate() - 1


def stragglers(workload: Workload) -> NDArray[np.bool_]:
    """Batches that cost far more than others; those of a lagging worker are judged without its lag."""
    total = workload.plain_work.sum(axis=0)
    median = float(np.median(total))
    deviation_s = 1.4826 * float(np.median(np.abs(total - median)))
    return np.asarray(total > max(STRAGGLES * median, median + DEVIATIONS * deviation_s))

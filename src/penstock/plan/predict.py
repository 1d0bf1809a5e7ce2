"""The predicted rate of a workload, by the operational model.

    X = min(W/S, cores/D_cpu, BW(q)/bytes, IOPS(q)/requests, 1/D_main, 1/T_step)

W is the number of workers, S the time of one worker for a batch, D_cpu all computing for a batch, q the number of reads
in flight (see storage_model.py), D_main what the main process does for a batch (receiving it, and the step) and T_step
the step alone.

These laws bound the rate in any case. They are the rate itself where one of them binds alone: no worker lags, batches
do not vary, every process has a core of its own, other programs use none, a worker always has its next task (prefetch
≥ 2), and the next bound is at least CROSSOVER times as high. Everywhere else the rate is simulated, because a run
stays below both of two close bounds, and below a bound if batches are uneven or the loop waits for a core. The
simulated rate is cut to the lowest bound, because a finite simulation may use up batches that were ready at its start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isinf
from typing import Literal

import numpy as np

from penstock.core.plan import ThroughputLimit
from penstock.core.types import Floats
from penstock.diagnose.gains import GAIN_MAX
from penstock.model.bounds import Bound, Demands, bounds
from penstock.model.simulation_data import CPU, IO, LOCK
from penstock.model.workload import Workload, gain
from penstock.plan.storage_model import StoredWorkload

CROSSOVER = 1.5
"""Bounds whose rates differ by less than this factor are simulated."""
EVEN = 0.1
"""Standard deviation over mean up to which batches and steps count as equal."""
MAX_BATCHES = 600
"""Batches of a longer run that are simulated: even if they vary as much as their mean, the mean is known to 4%."""

LIMIT_NAMES = {
    "workers": "the workers' own time per batch",
    "cpu": "the cores",
    "serial": "a lock that all workers share",
    "bandwidth": "the storage's bandwidth",
    "requests": "the requests that the storage serves",
    "main": "the main process: receiving batches and the step",
    "step": "the step itself",
}
"""A description of each bound, by the name of the bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The predicted rate of a workload, and the bounds on it."""

    batches_s: float
    """Batches per second, start-ups included."""
    samples_per_batch: float
    bounds: tuple[Bound, ...]
    """Upper bounds in batches per second, the lowest first."""
    most_batches_s: float
    """Batches per second if every batch were ready: the step alone; infinite if it takes no time."""
    by: Literal["laws", "simulation"]
    in_flight: float | None = None
    """Reads in flight if only workers and storage limited them; None without a storage curve."""

    @property
    def samples_s(self) -> float:
        """Samples per second, start-ups included."""
        return self.batches_s * self.samples_per_batch

    @property
    def limits(self) -> tuple[ThroughputLimit, ...]:
        """The bounds in samples per second."""
        return tuple(
            ThroughputLimit(name=bound.name, samples_s=bound.rate * self.samples_per_batch) for bound in self.bounds
        )

    @property
    def binding(self) -> ThroughputLimit | None:
        """The lowest limit; None where nothing takes any time."""
        return self.limits[0] if self.bounds else None

    @property
    def next(self) -> ThroughputLimit | None:
        """The limit that would bind if the lowest were removed."""
        return self.limits[1] if len(self.bounds) > 1 else None

    @property
    def most_gain(self) -> float:
        """The largest gain that any change to loading could give; infinite where the step takes no time."""
        return 0.0 if isinf(self.batches_s) else max(0.0, self.most_batches_s / self.batches_s - 1)

    @property
    def lost(self) -> float:
        """Share of the lowest bound that is not reached, because batches vary or wait for each other."""
        return 0.0 if not self.bounds else max(0.0, 1 - self.batches_s / self.bounds[0].rate)


def predict(workload: Workload, samples_per_batch: float = 1.0) -> Prediction:
    """Predict the rate of a workload; give it a storage curve with `on_storage`, other settings with its edits."""
    in_flight = _in_flight(workload)
    if isinstance(workload, StoredWorkload) and workload.reads.ahead:  # the device is then a bound of its own
        workload = workload.replace(io_s=np.zeros(1))
    found = bounds(_demands(workload, in_flight))
    lowest = found[0].rate if found else inf
    by_laws = _laws_suffice(workload, found)
    steady = lowest if by_laws else min(lowest, workload.steady_rate)
    step_s = float(workload.step_s.mean())
    return Prediction(
        batches_s=_with_startup(steady, workload),
        samples_per_batch=samples_per_batch,
        bounds=found,
        most_batches_s=1 / step_s if step_s > 0 else inf,
        by="laws" if by_laws else "simulation",
        in_flight=in_flight,
    )


def thinned(workload: Workload, max_batches: int = MAX_BATCHES) -> Workload:
    """Return a shorter workload of the same kind: evenly spaced rounds of all workers, at least one."""
    window = max(1, workload.workers)
    rounds, kept = len(workload) // window, max(1, max_batches // window)
    if len(workload) <= max_batches or rounds <= kept:
        return workload
    first = np.linspace(0, rounds - 1, kept).astype(np.int64) * window
    return workload.select((first[:, None] + np.arange(window)).ravel())


def gain_of_edit(workload: Workload, edit: Callable[[Workload], Workload]) -> float:
    """Return the gain in samples per second of the edited workload, limited to a hundredfold as in a diagnosis."""
    run = thinned(workload)
    return min(gain(run, edit(run)), GAIN_MAX)


def is_even(workload: Workload) -> bool:
    """Return whether all batches and all steps cost about the same, on every worker."""
    return not workload.lags and variation(workload.work.sum(axis=0)) <= EVEN and variation(workload.step_s) <= EVEN


def service_s(workload: Workload) -> float:
    """Return S of the law W/S: the seconds of one worker for a batch when it waits for no other process.

    In order, each worker makes every W-th batch, so the slowest one sets the rate; out of order their rates add up.
    """
    per_worker = _plain_s(workload).sum() + _lags(workload).sum(axis=0)
    if workload.in_order or not per_worker.all():
        return float(per_worker.max())
    return float(len(per_worker) / (1 / per_worker).sum())


def computing_share(workload: Workload) -> float | None:
    """Return the share of a worker's time for a batch that it computes; None where batches take no time."""
    total = service_s(workload)
    return float(_plain_s(workload)[CPU]) / total if total > 0 else None


def _with_startup(steady: float, workload: Workload) -> float:
    seconds = len(workload) / steady + workload.startup_s
    return len(workload) / seconds if seconds > 0 else inf


def _laws_suffice(workload: Workload, found: tuple[Bound, ...]) -> bool:
    """Return whether the lowest bound is the rate (see the module docstring).

    The step is part of the work of the main process, so these two bounds being close is not a crossover.
    """
    if not found:
        return True
    loop = workload.step_threads if workload.step_cpu_s.any() else 1
    computing = workload.workers + loop if workload.cpu_s.any() else 1
    if workload.competitors or computing > workload.cores or workload.prefetch < 2 or not is_even(workload):
        return False
    if not workload.workers:
        return True
    others = [bound for bound in found[1:] if not (found[0].name == "main" and bound.name == "step")]
    return not others or others[0].rate >= CROSSOVER * found[0].rate


def _demands(workload: Workload, in_flight: float | None) -> Demands:
    """Return the mean demands of a batch; a lagging worker lags for its share of the batches with this many workers."""
    plain, step_s = _plain_s(workload), float(workload.step_s.mean())
    stored = {} if in_flight is None or not isinstance(workload, StoredWorkload) else _storage(workload, in_flight)
    if not workload.workers:
        cpu_s = float(plain[CPU] + workload.step_threads * workload.step_cpu_s.mean())
        main_s = float(plain.sum()) + step_s
        return Demands(workers=0, cores=_cores(workload), cpu_s=cpu_s, main_s=main_s, step_s=step_s, **stored)
    lag = _lags(workload).mean(axis=1) if workload.in_order else np.zeros(len(plain))
    receive_s = float(workload.receive_s.mean())
    return Demands(
        workers=workload.workers,
        service_s=service_s(workload),
        cores=_cores(workload),
        cpu_s=float(plain[CPU] + lag[CPU] + receive_s + workload.step_threads * workload.step_cpu_s.mean()),
        lock_s=float(plain[LOCK] + lag[LOCK]),
        main_s=receive_s + step_s if receive_s > 0 else 0.0,
        step_s=step_s,
        **stored,
    )


def _storage(workload: StoredWorkload, in_flight: float) -> dict[str, float]:
    """Return the storage arguments of Demands."""
    reads = workload.reads
    found: dict[str, float] = {}
    if reads.batch_bytes:
        found |= {"size_bytes": reads.batch_bytes, "bandwidth_bytes_s": reads.bytes_s(in_flight)}
    if reads.batch_requests:
        found |= {"requests": reads.batch_requests, "requests_s": reads.requests_s(in_flight)}
    return found


def _in_flight(workload: Workload) -> float | None:
    """Return the reads in flight; with read-ahead by the system, the depth at which the curve ends."""
    if not isinstance(workload, StoredWorkload):
        return None
    if workload.reads.ahead:
        return workload.reads.curve[-1][0]
    if not workload.workers:
        return 1.0
    per_part = _plain_s(workload) + _lags(workload).mean(axis=1)
    found = workload.reads.in_flight(workload.workers, float(per_part.sum() - per_part[IO]))
    return workload.reads.depth(found, workload.workers)


def _cores(workload: Workload) -> float:
    """Return the cores left to the run: other programs get the same share per process as each process of the run."""
    if not workload.competitors:
        return workload.cores
    processes = workload.workers + 1
    return processes * workload.worker_pool().core_share(processes)


def _plain_s(workload: Workload) -> Floats:
    """Return the mean seconds of each part of making a batch, without the lag of slow workers."""
    return np.asarray(workload.work_without_lags.mean(axis=1))


def _lags(workload: Workload) -> Floats:
    """Return the extra seconds of slow workers: a row per part, a column per worker."""
    lag = workload.worker_pool().lag
    return lag if lag.shape[1] else np.zeros((len(lag), max(1, workload.workers)))


def variation(seconds: Floats) -> float:
    """Return the standard deviation over the mean."""
    mean = float(seconds.mean())
    return float(seconds.std()) / mean if mean > 0 else 0.0

"""What a run should give, by the operational model.

    X = min(W/S, cores/D_cpu, BW(q)/bytes, IOPS(q)/requests, 1/D_main, 1/T_step)

S is a worker's time for a batch, D_cpu all computing for it, q the reads in flight (see stored.py), D_main what the
main process does for it (taking it over, and the step), T_step the step alone.

The laws bound the rate whatever happens. They *are* the rate where one of them binds alone: nothing lags or varies,
there is a core for everybody and no stranger on any, a worker has its next task at hand (prefetch ≥ 2), and the next
law is CROSSOVER times away. Everywhere else the simulator is asked, because near the crossover of two laws, with
uneven batches, and with a loop that stands in line for a core, a run stays below both. What it says is cut to the
tightest law: a finite simulation may spend what it had in stock at its start.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isinf
from typing import Literal

import numpy as np

from penstock.core.plan import ThroughputLimit
from penstock.model.bounds import Bound, Demands, bounds
from penstock.model.simulation_input import CPU, IO, SERIAL, Floats
from penstock.model.workload import Workload
from penstock.plan.storage_model import StoredWorkload

CROSSOVER = 1.5
"""Laws closer together than this times the rate of the lower are asked of the simulator."""
EVEN = 0.1
"""Standard deviation over mean: batches and steps that vary less count as equal."""
MOST_BATCHES = 600
"""That the simulator is given of a longer run: batches that vary as much as they take have a mean sure to 4% then."""

MEANING = {
    "workers": "the workers' own time per batch",
    "cpu": "the cores",
    "serial": "a lock that all workers share",
    "bandwidth": "the storage's bandwidth",
    "requests": "the requests that the storage serves",
    "main": "the main process: taking batches over and the step",
    "step": "the step itself",
}
"""Of a limit's name, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a run should give, and why not more."""

    batches_s: float
    """Start-ups counted in."""
    samples_per_batch: float
    bounds: tuple[Bound, ...]
    """In batches per second, the one that binds first, then the next."""
    most_batches_s: float
    """With any supply of data: the step alone; infinite where it takes no time."""
    by: Literal["laws", "simulation"]
    in_flight: float | None = None
    """Reads at a time if nothing but workers and storage held them up; None where no curve is known."""

    @property
    def samples_s(self) -> float:
        """The same in samples."""
        return self.batches_s * self.samples_per_batch

    @property
    def limits(self) -> tuple[ThroughputLimit, ...]:
        """The bounds in samples per second."""
        return tuple(
            ThroughputLimit(name=bound.name, samples_s=bound.rate * self.samples_per_batch) for bound in self.bounds
        )

    @property
    def binding(self) -> ThroughputLimit | None:
        """The limit that is reached first; None where nothing takes any time."""
        return self.limits[0] if self.bounds else None

    @property
    def next(self) -> ThroughputLimit | None:
        """The limit that would be reached if the first were gone."""
        return self.limits[1] if len(self.bounds) > 1 else None

    @property
    def most_gain(self) -> float:
        """That any change to the supply of data could give; infinite where the step takes no time."""
        return 0.0 if isinf(self.batches_s) else max(0.0, self.most_batches_s / self.batches_s - 1)

    @property
    def lost(self) -> float:
        """Share of the tightest law's rate that is not reached, because batches vary or wait for each other."""
        return 0.0 if not self.bounds else max(0.0, 1 - self.batches_s / self.bounds[0].rate)


def predict(workload: Workload, samples_per_batch: float = 1.0) -> Prediction:
    """Of a workload as it is; `on_storage` gives it a curve, its edits other settings."""
    in_flight = _in_flight(workload)
    if isinstance(workload, StoredWorkload) and workload.reads.ahead:  # the device is a law of its own then
        workload = workload.with_(io_s=np.zeros(1))
    found = bounds(_demands(workload, in_flight))
    tightest = found[0].rate if found else inf
    alone = _laws_suffice(workload, found)
    steady = tightest if alone else min(tightest, workload.steady_rate)
    step_s = float(workload.step_s.mean())
    return Prediction(
        batches_s=_with_startup(steady, workload),
        samples_per_batch=samples_per_batch,
        bounds=found,
        most_batches_s=1 / step_s if step_s > 0 else inf,
        by="laws" if alone else "simulation",
        in_flight=in_flight,
    )


def thinned(workload: Workload, most: int = MOST_BATCHES) -> Workload:
    """A shorter run of the same kind: rounds of all workers, evenly spaced, at least one."""
    window = max(1, workload.workers)
    rounds, kept = len(workload) // window, max(1, most // window)
    if len(workload) <= most or rounds <= kept:
        return workload
    first = np.linspace(0, rounds - 1, kept).astype(np.int64) * window
    return workload.take((first[:, None] + np.arange(window)).ravel())


def even(workload: Workload) -> bool:
    """Whether all batches, and all steps, cost about the same, whoever makes them."""
    return not workload.lags_s and variation(workload.work.sum(axis=0)) <= EVEN and variation(workload.step_s) <= EVEN


def service_s(workload: Workload) -> float:
    """S of the law W/S: of a worker for a batch when nothing is in its way.

    In order each worker makes every W-th batch, so the slowest sets the pace; out of order all give what they can.
    """
    each = _plain_s(workload).sum() + _lags(workload).sum(axis=0)
    if workload.in_order or not each.all():
        return float(each.max())
    return float(len(each) / (1 / each).sum())


def _with_startup(steady: float, workload: Workload) -> float:
    seconds = len(workload) / steady + workload.startup_s
    return len(workload) / seconds if seconds > 0 else inf


def _laws_suffice(workload: Workload, found: tuple[Bound, ...]) -> bool:
    """See the module's first lines. The step is part of what `main` does: those two are no crossover."""
    if not found:
        return True
    computing = workload.workers + 1 if workload.cpu_s.any() else 1
    if workload.burners or computing > workload.cores or workload.prefetch < 2 or not even(workload):
        return False
    if not workload.workers:
        return True
    rivals = [bound for bound in found[1:] if not (found[0].name == "main" and bound.name == "step")]
    return not rivals or rivals[0].rate >= CROSSOVER * found[0].rate


def _demands(workload: Workload, in_flight: float | None) -> Demands:
    """On average; lagging workers lag for as many batches as they would make with this number of workers."""
    plain, step_s = _plain_s(workload), float(workload.step_s.mean())
    stored = {} if in_flight is None or not isinstance(workload, StoredWorkload) else _stored(workload, in_flight)
    if not workload.workers:
        cpu_s = float(plain[CPU] + workload.step_cpu_s.mean())
        main_s = float(plain.sum()) + step_s
        return Demands(workers=0, cores=_cores(workload), cpu_s=cpu_s, main_s=main_s, step_s=step_s, **stored)
    lag = _lags(workload).mean(axis=1) if workload.in_order else np.zeros(len(plain))
    taking_s = float(workload.handover_s.mean())
    return Demands(
        workers=workload.workers,
        service_s=service_s(workload),
        cores=_cores(workload),
        cpu_s=float(plain[CPU] + lag[CPU] + taking_s + workload.step_cpu_s.mean()),
        serial_s=float(plain[SERIAL] + lag[SERIAL]),
        main_s=taking_s + step_s if taking_s > 0 else 0.0,
        step_s=step_s,
        **stored,
    )


def _stored(workload: StoredWorkload, in_flight: float) -> dict[str, float]:
    reads = workload.reads
    found: dict[str, float] = {}
    if reads.batch_bytes:
        found |= {"size_bytes": reads.batch_bytes, "bandwidth_bytes_s": reads.bytes_s(in_flight)}
    if reads.batch_requests:
        found |= {"requests": reads.batch_requests, "requests_s": reads.requests_s(in_flight)}
    return found


def _in_flight(workload: Workload) -> float | None:
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
    """Strangers get the same share as each of ours: with all of ours wanting one, so much is left to us."""
    if not workload.burners:
        return workload.cores
    ours = workload.workers + 1
    return ours * workload.crew().core_share(ours)


def _plain_s(workload: Workload) -> Floats:
    """Seconds per part of making a batch, lags left out."""
    return np.asarray(workload.plain_work.mean(axis=1))


def _lags(workload: Workload) -> Floats:
    """A row per part, a column per worker."""
    lag = workload.crew().lag
    return lag if lag.shape[1] else np.zeros((len(lag), max(1, workload.workers)))


def variation(seconds: Floats) -> float:
    """Standard deviation over mean."""
    mean = float(seconds.mean())
    return float(seconds.std()) / mean if mean > 0 else 0.0

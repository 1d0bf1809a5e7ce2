"""A run as the model takes it: what each batch cost and who made it; and the same run with one thing otherwise.

An edit is a small function from workload to workload. What its rate gains is what the thing cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import inf, isinf
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.errors import SettingError
from penstock.model.lag import Lags, find_lags, take_off
from penstock.model.laws import Demands
from penstock.model.scene import CPU, PARTS, SERIAL, Batches, Crew, Floats, Ints, Trace, column
from penstock.model.simulate import simulate

WARM_UP = 4
"""Times the tasks that are out, or once the whole workload if that is less: then delivery has found its rhythm."""
STRAGGLES = 2.0
"""A batch straggles if it takes more than so many medians..."""
DEVIATIONS = 5.0
"""...and is so many standard deviations (by the median deviation) beyond the median."""
MOST_BATCHES = 500
"""In a resample: of longer runs so many are drawn, and the interval is made as much narrower as more would make it."""
LEAST_BLOCKS = 5
"""In a resample: fewer would all look alike."""

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

    def crew(self) -> Crew:
        """With other workers than the run had, those that lagged are still among them, the worst first."""
        worst = sorted(self.lags_s.values(), key=lambda lag_s: -float(lag_s.sum()))[: self.workers]
        lag = np.zeros((len(PARTS), self.workers if worst else 0))
        for at, lag_s in enumerate(worst):
            lag[:, at] = lag_s
        return Crew(self.workers, self.prefetch, self.in_order, self.cores, self.burners, lag=lag)

    def trace(self, steps: int, ahead: int = 0) -> Trace:
        """So many steps from a cold start; `ahead` batches follow the last. Where all are used up they come again."""
        which = np.resize(np.arange(len(self)), steps + ahead)
        batches = Batches(self.plain_work[:, which], self.handover_s[which], self.step_s[which], self.step_cpu_s[which])
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


# -- edits: other settings, another machine ------------------------------------------------------------------------


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


# -- edits: one cost gone ------------------------------------------------------------------------------------------


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


def without_handover(workload: Workload) -> Workload:
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


def stragglers(workload: Workload) -> NDArray[np.bool_]:
    """Batches that cost far more than others; those of a lagging worker are judged without its lag."""
    total = workload.plain_work.sum(axis=0)
    median = float(np.median(total))
    deviation_s = 1.4826 * float(np.median(np.abs(total - median)))
    return np.asarray(total > max(STRAGGLES * median, median + DEVIATIONS * deviation_s))


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


# -- how sure ------------------------------------------------------------------------------------------------------


class Interval(NamedTuple):
    """Of a gain: 95% of the resamples lie between low and high."""

    low: float
    median: float
    high: float


def bootstrap(
    workload: Workload, change: Callable[[Workload], Workload], resamples: int = 50, seed: int = 0
) -> Interval:
    """How sure the gain of a change is: the run is drawn anew in blocks, and simulated before and after.

    A block is two windows or more, or a fifth of a run that is too short for that.
    """
    gains = [gain(sample, change(sample)) for sample in _resamples(workload, resamples, seed)]
    low, median, high = (float(found) for found in np.quantile(gains, (0.025, 0.5, 0.975), method="nearest"))
    narrower = (MOST_BATCHES / len(workload)) ** 0.5
    if narrower < 1:
        low, high = median + (low - median) * narrower, median + (high - median) * narrower
    return Interval(low, median, high)


@lru_cache(maxsize=1)
def _resamples(workload: Workload, number: int, seed: int) -> tuple[Workload, ...]:
    """Kept for the next change to the same run: each knows its rate by then."""
    random = np.random.default_rng(seed)
    count, window = len(workload), max(1, workload.workers)
    drawn = min(count, MOST_BATCHES)
    block = min(2 * window * max(1, round(drawn ** (1 / 3) / (2 * window))), max(1, drawn // LEAST_BLOCKS))
    begins = random.integers(count, size=(number, -(-drawn // block)))
    return tuple(workload.take((each[:, None] + np.arange(block)).ravel()[:drawn] % count) for each in begins)

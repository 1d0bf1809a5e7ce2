"""The data of the HTML page's plots: thinned so that no spike is lost, and rounded so that the page stays small."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from penstock.core.types import Floats, Ints
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.loop import UNKNOWN
from penstock.recording.format import FetchLine, SystemLine

POINTS = 4000
"""Most points of a plot: more than a screen has columns."""
DENSE = 5
"""Values per point from which on the plot also shows a mean."""
MEAN_BUCKETS = 20
"""Buckets that share a mean: at least 200 batches, so that the mean covers several rounds of the workers."""
SMOOTH_POINTS = 600
"""Points of a plot that takes half the page."""
MAX_MARKS = 400
"""Most slow batches to mark: more marks would form a solid line."""
SIGNIFICANT_DIGITS = 4
"""Digits of a fraction: a plot cannot show more."""


@dataclass(frozen=True, slots=True)
class Plot:
    """Several series over one x axis; an unknown value is None."""

    x: list[float | None]
    series: dict[str, list[float | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStrip:
    """A plot over all steady batches of a loader: the loop's own time (step), and with the wait (total)."""

    plot: Plot
    marks: list[int]
    """Positions of the slow batches; empty if there are too many to mark."""
    slow: int
    """Number of slow batches."""
    period: int | None
    """Batches from one slow batch to the next, if most of these gaps are equal."""


def thin(x: Floats, series: dict[str, Floats], *, mean_of: str = "", points: int = POINTS) -> Plot:
    """Reduce series to the lowest and the highest value of each bucket, in their order; short ones stay as they are.

    With very many values the extremes alone would mislead, since a single spike determines its bucket: `mean_of` names
    a series whose mean is added.
    """
    if len(x) <= points:
        return Plot(_rounded(x), {name: _rounded(values) for name, values in series.items()})
    edges = np.linspace(0, len(x), points // 2 + 1).astype(np.int64)
    starts, middles = edges[:-1], (edges[:-1] + edges[1:]) // 2
    thinned = {name: _extremes(values, starts) for name, values in series.items()}
    if mean_of and len(x) >= DENSE * points:
        thinned["mean"] = np.repeat(_means(series[mean_of], starts[::MEAN_BUCKETS]), 2 * MEAN_BUCKETS)[:points]
    both = np.stack([starts, middles], axis=1).ravel()
    return Plot(_rounded(x[both]), {name: _rounded(values) for name, values in thinned.items()})


def smooth(x: Floats, series: dict[str, Floats], points: int = SMOOTH_POINTS) -> Plot:
    """Reduce series to the means of buckets; for shares and rates, which are means over a second already."""
    starts = np.linspace(0, len(x), min(points, len(x)), endpoint=False).astype(np.int64)
    return Plot(_rounded(x[starts]), {name: _rounded(_means(values, starts)) for name, values in series.items()})


def _extremes(values: Floats, starts: Ints) -> Floats:
    """Return two values per bucket; NaN (unknown) only if the bucket has no known value."""
    low = np.fmin.reduceat(values, starts)
    high = np.fmax.reduceat(values, starts)
    rising = values[starts] <= (low + high) / 2
    return np.stack([np.where(rising, low, high), np.where(rising, high, low)], axis=1).ravel()


def _means(values: Floats, starts: Ints) -> Floats:
    """Return the mean of the known values of each bucket; NaN if it has none."""
    known = np.isfinite(values)
    counts = np.add.reduceat(known.astype(np.float64), starts)
    sums = np.add.reduceat(np.where(known, values, 0.0), starts)
    means: Floats = np.divide(sums, counts, out=np.full(len(starts), np.nan), where=counts > 0)
    return means


def _rounded(values: Floats) -> list[float | None]:
    """Return rounded numbers; JSON has no NaN and no infinity, so these become None and leave a gap in the plot."""
    return [_round(value) if math.isfinite(value) else None for value in values.tolist()]


def _round(value: float) -> float:
    if abs(value) >= 10 ** (SIGNIFICANT_DIGITS - 1):
        return round(value)
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")


# -- the training loop ---------------------------------------------------------------------------------------------


def step_strip(evidence: Evidence) -> StepStrip:
    """Return the seconds per batch over the batches of all epochs."""
    loop = evidence.loop
    slow = np.flatnonzero(loop.slow)
    positions = _positions(evidence)
    return StepStrip(
        plot=thin(positions, {"total": loop.wait_s + loop.busy_s, "step": loop.busy_s}, mean_of="total"),
        marks=[int(positions[number]) for number in slow] if len(slow) <= MAX_MARKS else [],
        slow=len(slow),
        period=stall_period(positions[slow].astype(np.int64)),
    )


def stall_period(slow: Ints) -> int | None:
    """Return the most frequent gap between slow batches, if there are at least three gaps and most have that length."""
    gaps = Counter(np.diff(slow).tolist())
    if sum(gaps.values()) < 3:
        return None
    gap, count = gaps.most_common(1)[0]
    return int(gap) if gap > 1 and count > sum(gaps.values()) / 2 else None


def ready_batches(evidence: Evidence) -> Plot | None:
    """Return the numbers of ready batches and of outstanding tasks at each request for a batch; None if unknown."""
    ready = evidence.loop.ready_batches
    if not (ready != UNKNOWN).any():
        return None
    series = {"ready": np.where(ready == UNKNOWN, np.nan, ready.astype(np.float64))}
    outstanding = [np.nan if step.outstanding is None else step.outstanding for step in evidence.loop.steps]
    if not np.isnan(outstanding).all():
        series["outstanding"] = np.array(outstanding, np.float64)
    return thin(_positions(evidence), series, mean_of="ready")


def _positions(evidence: Evidence) -> Floats:
    """Return the number of each steady batch, counted over all epochs including the first batch of each epoch."""
    epochs = np.array([step.epoch for step in evidence.loop.steps])
    begins_epoch = np.diff(epochs, prepend=epochs[:1] - 1) != 0
    left_out = begins_epoch & np.array([step.batch > 0 for step in evidence.loop.steps])
    positions: Floats = (np.arange(len(epochs)) + np.cumsum(left_out)).astype(np.float64)
    return positions


# -- the timeline around the longest wait --------------------------------------------------------------------------

TIMELINE_STEPS = 120
TIMELINE_WORKERS = 64
TIMELINE_FETCHES = 5000
"""Most steps, workers and fetches of a timeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The loop and its workers, batch by batch, around the longest wait; times count from the begin of the window."""

    seconds: float
    period: int | None
    loop: list[tuple[float, float, float, int, bool]]
    """A tuple per step: start, wait, step, batch, whether it was slow."""
    workers: list[tuple[str, list[tuple[float, float, float, int]]]]
    """A pair per worker: its name, and for each of its batches start, seconds, seconds of collate, batch."""
    hidden: str
    """A sentence on what is left out because there is too much to draw."""


def timeline(evidence: Evidence, period: int | None) -> Timeline:
    """Return two periods before the longest wait and one after it, all of one epoch (or of epochs of one batch)."""
    window = _window(evidence, period)
    steps, slow = evidence.loop.steps[window], evidence.loop.slow[window].tolist()
    first_s, last_s = steps[0].at_s, steps[-1].at_s + steps[-1].wait_s + steps[-1].step_s
    inside = [
        fetch for fetch in evidence.workers.fetches if fetch.at_s < last_s and fetch.at_s + fetch.fetch_s > first_s
    ]
    fetches = sorted(inside, key=lambda fetch: fetch.at_s)[:TIMELINE_FETCHES]
    workers = sorted({fetch.worker for fetch in fetches})
    return Timeline(
        seconds=last_s - first_s,
        period=period,
        loop=[
            (round(step.at_s - first_s, 6), round(step.wait_s, 6), round(step.step_s, 6), step.batch, is_slow)
            for step, is_slow in zip(steps, slow, strict=True)
        ],
        workers=[_worker_row(worker, fetches, first_s) for worker in workers[:TIMELINE_WORKERS]],
        hidden=_hidden(len(workers) - TIMELINE_WORKERS, "workers")
        or _hidden(len(inside) - TIMELINE_FETCHES, "batches"),
    )


def _hidden(count: int, what: str) -> str:
    return f"{count:,} more {what} are not drawn" if count > 0 else ""


def _window(evidence: Evidence, period: int | None) -> slice:
    reach = min(period or max(evidence.settings.num_workers, 8), TIMELINE_STEPS // 3)
    worst = int(np.argmax(evidence.loop.wait_s))
    steps, longest = evidence.loop.steps, evidence.loop.steps[worst]
    candidates = range(max(0, worst - 2 * reach), min(len(steps), worst + reach + 1))
    inside = [
        number
        for number in candidates
        if steps[number].epoch == longest.epoch or steps[number].batch == longest.batch == 0
    ]
    return slice(inside[0], inside[-1] + 1)


def _worker_row(
    worker: int, fetches: list[FetchLine], first_s: float
) -> tuple[str, list[tuple[float, float, float, int]]]:
    return "main process" if worker < 0 else f"worker {worker}", [
        (round(fetch.at_s - first_s, 6), round(fetch.fetch_s, 6), round(fetch.collate_s, 6), fetch.batch)
        for fetch in fetches
        if fetch.worker == worker
    ]


# -- the machine ---------------------------------------------------------------------------------------------------


def utilisation(system: tuple[SystemLine, ...], cores: float) -> Plot | None:
    """Return the utilisation of GPUs, cores and the busiest disk in percent; what was never sampled is left out."""
    if not system:
        return None
    system = _by_time(system)
    series = {"CPU": np.array([100 * line.cpu / (cores if cores > 0 else 1) for line in system])}
    if any(line.gpus for line in system):
        series["GPU"] = np.array([_mean([100 * gpu.utilisation for gpu in line.gpus]) for line in system])
    if any(line.disks for line in system):
        series["disk"] = np.array([max((100 * disk.busy for disk in line.disks), default=np.nan) for line in system])
    return smooth(np.array([line.at_s for line in system]), series)


def throughput(system: tuple[SystemLine, ...]) -> Plot | None:
    """Return the MB/s read from disks and received from the network; None if there was neither."""
    system = _by_time(system)
    disks = np.array([sum(disk.read_bytes_s for disk in line.disks) / 1e6 for line in system])
    network = np.array([line.network_bytes_s / 1e6 for line in system])
    series = {name: rate for name, rate in (("disk", disks), ("network", network)) if rate.any()}
    return smooth(np.array([line.at_s for line in system]), series) if series else None


def _by_time(system: tuple[SystemLine, ...]) -> tuple[SystemLine, ...]:
    """Sort by time: the x of a plot must grow even if the clock was set back (the recording's notes report that)."""
    return tuple(sorted(system, key=lambda line: line.at_s))


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else float("nan")

"""Numbers for the plots: thinned so that no spike is lost, and rounded so that the page stays small."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.core.types import Floats
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.loop import UNKNOWN
from penstock.recording.format import SystemLine

POINTS = 4000
"""Per plot at most: more than a screen has columns."""
DENSE = 5
"""Times as many values as points: from there on a mean is drawn too."""
MEAN_STRETCHES = 20
"""Stretches that share a mean: 200 batches at least, so that it holds several rounds of the workers."""
SMOOTH_POINTS = 600
"""Of a plot that takes half the page."""
MARKS = 400
"""Slow batches marked at most: beyond it the marks would be a solid line."""
SIGNIFICANT = 4
"""Digits of a fraction: a plot shows no more."""


@dataclass(frozen=True, slots=True)
class Plot:
    """One x for all series; a value that is not known is None."""

    x: list[float | None]
    series: dict[str, list[float | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStrip:
    """Every steady batch of a loader: the loop's own time (step), and with the wait (total)."""

    plot: Plot
    marks: list[int]
    """Batches that were slow; empty where there are too many to mark."""
    slow: int
    period: int | None
    """Batches from one slow one to the next, where most are alike."""


def thin(x: Floats, series: dict[str, Floats], *, mean_of: str = "", points: int = POINTS) -> Plot:
    """The lowest and the highest of each stretch, in the order they came: what fits is left as it is.

    Of very many values the extremes alone would mislead, since one spike fills its column: `mean_of` adds a mean.
    """
    if len(x) <= points:
        return Plot(_rounded(x), {name: _rounded(values) for name, values in series.items()})
    edges = np.linspace(0, len(x), points // 2 + 1).astype(np.int64)
    starts, middles = edges[:-1], (edges[:-1] + edges[1:]) // 2
    thinned = {name: _extremes(values, starts) for name, values in series.items()}
    if mean_of and len(x) >= DENSE * points:
        thinned["mean"] = np.repeat(_means(series[mean_of], starts[::MEAN_STRETCHES]), 2 * MEAN_STRETCHES)[:points]
    both = np.stack([starts, middles], axis=1).ravel()
    return Plot(_rounded(x[both]), {name: _rounded(values) for name, values in thinned.items()})


def smooth(x: Floats, series: dict[str, Floats], points: int = SMOOTH_POINTS) -> Plot:
    """Means of stretches: of shares and rates, which are means over a second already."""
    starts = np.linspace(0, len(x), min(points, len(x)), endpoint=False).astype(np.int64)
    return Plot(_rounded(x[starts]), {name: _rounded(_means(values, starts)) for name, values in series.items()})


def _extremes(values: Floats, starts: NDArray[np.int64]) -> Floats:
    """Two values per stretch. NaN (not known) gives way to what is known."""
    low = np.fmin.reduceat(values, starts)
    high = np.fmax.reduceat(values, starts)
    rising = values[starts] <= (low + high) / 2
    return np.stack([np.where(rising, low, high), np.where(rising, high, low)], axis=1).ravel()


def _means(values: Floats, starts: NDArray[np.int64]) -> Floats:
    """Of what is known; NaN where nothing is."""
    known = np.isfinite(values)
    counts = np.add.reduceat(known.astype(np.float64), starts)
    sums = np.add.reduceat(np.where(known, values, 0.0), starts)
    means: Floats = np.divide(sums, counts, out=np.full(len(starts), np.nan), where=counts > 0)
    return means


def _rounded(values: Floats) -> list[float | None]:
    """JSON has no NaN and no infinity: they are None, and leave a gap in the plot."""
    return [_round(value) if math.isfinite(value) else None for value in values.tolist()]


def _round(value: float) -> float:
    return round(value) if abs(value) >= 10 ** (SIGNIFICANT - 1) else float(f"{value:.{SIGNIFICANT}g}")


# -- the loop ------------------------------------------------------------------------------------------------------


def strip(evidence: Evidence) -> StepStrip:
    """Seconds per batch, over the batches of all passes."""
    slow = np.flatnonzero(evidence.loop.slow)
    positions = _positions(evidence)
    return StepStrip(
        plot=thin(
            positions,
            {"total": evidence.loop.wait_s + evidence.loop.busy_s, "step": evidence.loop.busy_s},
            mean_of="total",
        ),
        marks=[int(positions[at]) for at in slow] if len(slow) <= MARKS else [],
        slow=len(slow),
        period=stall_period(positions[slow].astype(np.int64)),
    )


def stall_period(slow: NDArray[np.int64]) -> int | None:
    """The commonest gap between slow batches, if at least three gaps and most of them have it."""
    gaps = Counter(np.diff(slow).tolist())
    if sum(gaps.values()) < 3:
        return None
    gap, count = gaps.most_common(1)[0]
    return int(gap) if gap > 1 and count > sum(gaps.values()) / 2 else None


def ready(evidence: Evidence) -> Plot | None:
    """Batches that lay ready when the loop asked, and tasks that were out; None where nobody could tell."""
    if not (evidence.loop.ready_batches != UNKNOWN).any():
        return None
    outstanding = [np.nan if step.outstanding is None else step.outstanding for step in evidence.loop.steps]
    series = {
        "ready": np.where(
            evidence.loop.ready_batches == UNKNOWN, np.nan, evidence.loop.ready_batches.astype(np.float64)
        )
    }
    if not np.isnan(outstanding).all():
        series["outstanding"] = np.array(outstanding, np.float64)
    return thin(_positions(evidence), series, mean_of="ready")


def _positions(evidence: Evidence) -> Floats:
    """Each steady batch's number over all passes: the first of each pass counts too, where that is left out."""
    passes = np.array([step.epoch for step in evidence.loop.steps])
    begun = np.diff(passes, prepend=passes[:1] - 1) != 0
    left_out = begun & np.array([step.batch > 0 for step in evidence.loop.steps])
    positions: Floats = (np.arange(len(passes)) + np.cumsum(left_out)).astype(np.float64)
    return positions


# -- the machine ---------------------------------------------------------------------------------------------------


def utilisation(system: tuple[SystemLine, ...], cores: float) -> Plot | None:
    """Percent of what there is: device, cores, busiest disk. What was never seen is left out."""
    if not system:
        return None
    system = _in_time(system)
    series = {"CPU": np.array([100 * look.cpu / (cores if cores > 0 else 1) for look in system])}
    if any(look.gpus for look in system):
        series["GPU"] = np.array([_mean([100 * gpu.utilisation for gpu in look.gpus]) for look in system])
    if any(look.disks for look in system):
        series["disk"] = np.array([max((100 * disk.busy for disk in look.disks), default=np.nan) for look in system])
    return smooth(np.array([look.at_s for look in system]), series)


def throughput(system: tuple[SystemLine, ...]) -> Plot | None:
    """Read from disks and received from the network, in MB/s; None where neither was seen."""
    system = _in_time(system)
    disks = np.array([sum(disk.read_bytes_s for disk in look.disks) / 1e6 for look in system])
    network = np.array([look.network_bytes_s / 1e6 for look in system])
    series = {name: rate for name, rate in (("disk", disks), ("network", network)) if rate.any()}
    return smooth(np.array([look.at_s for look in system]), series) if series else None


def _in_time(system: tuple[SystemLine, ...]) -> tuple[SystemLine, ...]:
    """A plot's x only grows, even where the clock went back (the recording's notes say so)."""
    return tuple(sorted(system, key=lambda look: look.at_s))


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else float("nan")

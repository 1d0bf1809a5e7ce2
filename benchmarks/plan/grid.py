"""What `penstock.tune` finds, beside every point of a grid, torch's defaults and the settings of the field reports.

Every point of the grid is run once, briefly: that screens. Those that came near the best, and all that tuning, torch
and the reports name, then get the rounds that count, in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.plan.fresh import fresh
from benchmarks.plan.loads import Load
from benchmarks.plan.single_run import measured, tuned
from benchmarks.plan.times import Times
from benchmarks.result import in_turns, median_ratio
from penstock.core.plan import TORCH_PREFETCH_FACTOR
from penstock.tuner.result import TuningFindings, WorkerSettings

DEFAULT = WorkerSettings()
GRID = (DEFAULT, *(WorkerSettings(workers, depth) for workers in (1, 2, 4, 8) for depth in (2, 4, 8)))
QUICK_GRID = (DEFAULT, WorkerSettings(1), WorkerSettings(2))
FOLKLORE = (WorkerSettings(2, 2), WorkerSettings(8, 4), WorkerSettings(16, 8), WorkerSettings(32, 12), DEFAULT)
"""What five teams recommend for any training."""
FOREMOST = 3
"""Points of the grid that get the rounds in any case."""
NEAR = 0.9
"""And, for each number of workers, its best, if it came within this of the best of all: the fewest are looked for."""
AS_GOOD = 0.97
"""Of two rates, what counts as the same."""

Rates = Mapping[WorkerSettings, float]


@dataclass(frozen=True, kw_only=True)
class Course:
    """One load, all its settings."""

    load: str
    tuned: WorkerSettings
    tune_s: float
    grid: tuple[WorkerSettings, ...]
    screened: Rates
    """Samples per second, of one short run each."""
    counted: Mapping[WorkerSettings, list[float]]
    """Of the finalists, a figure a round."""

    @property
    def rates(self) -> dict[WorkerSettings, float]:
        return {setting: median(figures) for setting, figures in self.counted.items()}

    @property
    def best(self) -> WorkerSettings:
        """Of the grid."""
        return max((setting for setting in self.rates if setting in self.grid), key=lambda each: self.rates[each])

    @property
    def of_best(self) -> float:
        return median_ratio(self.counted[self.tuned], self.counted[self.best])

    @property
    def of_default(self) -> float:
        return median_ratio(self.counted[self.tuned], self.counted[DEFAULT])

    @property
    def fewest(self) -> int:
        """Workers of the grid that are as good as its best."""
        enough = AS_GOOD * self.rates[self.best]
        return min(each.workers for each, rate in self.rates.items() if each in self.grid and rate >= enough)


def run(of: Load, folder: Path, times: Times, *, quick: bool) -> Course:
    """Each run in a process of its own."""

    def rate(seconds: float, setting: WorkerSettings) -> float:
        return fresh(measured, of.name, setting, folder, seconds)

    findings = fresh(tuned, of.name, folder, times.tune_s, timeout_s=60 + 4 * times.tune_s)
    grid, folklore = (QUICK_GRID, ()) if quick else (GRID, FOLKLORE)
    return course(of.name, findings, grid, folklore, times, rate)


def course(
    name: str,
    findings: TuningFindings,
    grid: tuple[WorkerSettings, ...],
    folklore: tuple[WorkerSettings, ...],
    times: Times,
    rate: Callable[[float, WorkerSettings], float],
) -> Course:
    """Screen, then the rounds."""
    chosen = setting_of(findings)
    screened = {setting: rate(times.screen_s, setting) for setting in grid}
    racing = finalists(screened, (chosen, DEFAULT, *folklore))
    figures = in_turns([partial(rate, times.measure_s, setting) for setting in racing], times.rounds)
    return Course(
        load=name,
        tuned=chosen,
        tune_s=findings.seconds,
        grid=grid,
        screened=screened,
        counted=dict(zip(racing, figures, strict=True)),
    )


def finalists(screened: Rates, named: tuple[WorkerSettings, ...]) -> list[WorkerSettings]:
    """Who gets the rounds: those that are named, the foremost of the grid, and each number's best that came near."""
    ranked = sorted(screened, key=lambda setting: -screened[setting])
    best_of = {setting.workers: setting for setting in reversed(ranked)}
    near = [each for each in best_of.values() if screened[each] >= NEAR * screened[ranked[0]]]
    return sorted({*named, *ranked[:FOREMOST], *near}, key=WorkerSettings.cost)


def setting_of(findings: TuningFindings) -> WorkerSettings:
    """As the tuned keyword arguments have it."""
    kwargs = findings.kwargs
    if not kwargs["num_workers"]:
        return DEFAULT
    return WorkerSettings(
        kwargs["num_workers"], kwargs.get("prefetch_factor", TORCH_PREFETCH_FACTOR), kwargs.get("in_order", True)
    )

"""Compares the setting that `penstock.tune` chooses with a grid of settings, torch's defaults and the field reports'.

First every setting of the grid is screened by one short run. The best of them, the chosen setting, torch's default and
the settings of the field reports are then measured in rounds, in rotating order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.plan.fresh import fresh
from benchmarks.plan.loads import Load
from benchmarks.plan.single_run import measure_setting, tune_load
from benchmarks.plan.times import Times
from benchmarks.result import in_turns, median_ratio
from penstock.core.plan import TORCH_PREFETCH_FACTOR
from penstock.tuner.result import TuningFindings, WorkerSettings

DEFAULT = WorkerSettings()
GRID = (DEFAULT, *(WorkerSettings(workers, prefetch) for workers in (1, 2, 4, 8) for prefetch in (2, 4, 8)))
QUICK_GRID = (DEFAULT, WorkerSettings(1), WorkerSettings(2))
REPORTED = (WorkerSettings(2, 2), WorkerSettings(8, 4), WorkerSettings(16, 8), WorkerSettings(32, 12), DEFAULT)
"""Settings that the teams of five field reports recommend for any training."""
BEST_SCREENED = 3
"""Number of the best settings of the screening that are measured in any case."""
NEAR = 0.9
"""The best setting of each number of workers is measured too if it reached this share of the best rate, because the
fewest workers that are good enough are searched for."""
AS_GOOD = 0.97
"""Two rates whose ratio is at least this count as the same."""

Rates = Mapping[WorkerSettings, float]


@dataclass(frozen=True, kw_only=True)
class GridResult:
    """The rates of all settings of one load."""

    load: str
    tuned: WorkerSettings
    """The setting that `penstock.tune` chose."""
    tune_s: float
    grid: tuple[WorkerSettings, ...]
    screened: Rates
    """Samples per second in the short run of each setting of the grid."""
    counted: Mapping[WorkerSettings, list[float]]
    """Samples per second in each round, of the settings that were measured in rounds."""

    @property
    def rates(self) -> dict[WorkerSettings, float]:
        return {setting: median(figures) for setting, figures in self.counted.items()}

    @property
    def best(self) -> WorkerSettings:
        """The best setting of the grid."""
        return max((setting for setting in self.rates if setting in self.grid), key=lambda each: self.rates[each])

    @property
    def of_best(self) -> float:
        return median_ratio(self.counted[self.tuned], self.counted[self.best])

    @property
    def of_default(self) -> float:
        return median_ratio(self.counted[self.tuned], self.counted[DEFAULT])

    @property
    def fewest(self) -> int:
        """The smallest number of workers in the grid that is as good as its best setting."""
        enough = AS_GOOD * self.rates[self.best]
        return min(each.workers for each, rate in self.rates.items() if each in self.grid and rate >= enough)


def run(load: Load, folder: Path, times: Times, *, quick: bool) -> GridResult:
    """Tune a load and measure its grid; each run is a process of its own."""

    def rate(seconds: float, setting: WorkerSettings) -> float:
        return fresh(measure_setting, load.name, setting, folder, seconds)

    findings = fresh(tune_load, load.name, folder, times.tune_s, timeout_s=60 + 4 * times.tune_s)
    grid, reported = (QUICK_GRID, ()) if quick else (GRID, REPORTED)
    return measure_grid(load.name, findings, grid, reported, times, rate)


def measure_grid(
    name: str,
    findings: TuningFindings,
    grid: tuple[WorkerSettings, ...],
    reported: tuple[WorkerSettings, ...],
    times: Times,
    rate: Callable[[float, WorkerSettings], float],
) -> GridResult:
    """Screen the grid, then measure the finalists in rounds. `rate` runs a setting for so many seconds."""
    chosen = setting_of(findings)
    screened = {setting: rate(times.screen_s, setting) for setting in grid}
    measured = finalists(screened, (chosen, DEFAULT, *reported))
    figures = in_turns([partial(rate, times.measure_s, setting) for setting in measured], times.rounds)
    return GridResult(
        load=name,
        tuned=chosen,
        tune_s=findings.seconds,
        grid=grid,
        screened=screened,
        counted=dict(zip(measured, figures, strict=True)),
    )


def finalists(screened: Rates, named: tuple[WorkerSettings, ...]) -> list[WorkerSettings]:
    """Return the settings to measure in rounds.

    They are the named ones, the best of the screening, and the best setting for each number of workers if it is near
    the best of all.
    """
    ranked = sorted(screened, key=lambda setting: -screened[setting])
    best_of = {setting.workers: setting for setting in reversed(ranked)}
    near = [each for each in best_of.values() if screened[each] >= NEAR * screened[ranked[0]]]
    return sorted({*named, *ranked[:BEST_SCREENED], *near}, key=WorkerSettings.cost)


def setting_of(findings: TuningFindings) -> WorkerSettings:
    """Return the setting that the tuned keyword arguments describe."""
    kwargs = findings.kwargs
    if not kwargs["num_workers"]:
        return DEFAULT
    return WorkerSettings(
        kwargs["num_workers"], kwargs.get("prefetch_factor", TORCH_PREFETCH_FACTOR), kwargs.get("in_order", True)
    )

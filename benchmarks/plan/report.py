"""Reports the comparisons: a line for each target, and the tables with all measured rates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.plan.grid import AS_GOOD, DEFAULT, REPORTED, GridResult
from benchmarks.plan.predict import WITHIN, Comparison
from benchmarks.result import Line, Table
from penstock.tuner.result import WorkerSettings
from penstock.tuner.tune import SECONDS

PREDICTED = 0.8
"""Smallest accepted share of predictions that are near the measured rate."""
TUNED = 0.95
"""Smallest accepted ratio of the tuned rate to the best rate of the grid."""
LeftOut = dict[str, str]
"""Loads that this machine cannot run or that failed, with the reason."""

PREDICT_COLUMNS = ("load", "recorded with", "setting", "predicted", "measured", "error", "bottleneck", "")
PREDICT_NOTE = (
    "Samples per second without the starts of workers. Settings are workers/prefetch. For each load, one run was "
    "recorded with one setting, as `penstock run` does, and the model of `penstock plan` predicted the rates of "
    "others. These were then measured, each run in a fresh process and in turns; the median of the rounds counts. "
    f"✗: off by more than {WITHIN:.0%} of the measured rate."
)
GRID_COLUMNS = ("setting", "role", "screened", "measured", "of the grid's best")
GRID_NOTE = (
    "Samples per second, each run in a fresh process. Settings are workers/prefetch. Every setting of the grid (no "
    "workers; 1, 2, 4, 8 workers × prefetch 2, 4, 8) was screened by one short run. The settings near the best, the "
    "tuned setting, torch's defaults and the field reports' settings (reports) were then measured in turns, in "
    f"rotating order; the median of the rounds counts. The target against torch's defaults is {AS_GOOD:g}, since "
    "two runs with the same setting differ by as much."
)


def predict_findings(comparisons: Sequence[Comparison], left_out: LeftOut) -> Iterator[Line | Table]:
    near = sum(each.near for each in comparisons)
    if comparisons:
        what = f"predicted rate within {WITHIN:.0%} of the measured one"
        yield Line(what, f"{near}", f"of {len(comparisons)} settings", near / len(comparisons), PREDICTED, "at least")
    rows = [_comparison_row(each) for each in comparisons]
    rows += [(name, f"left out: {reason}", *[""] * (len(PREDICT_COLUMNS) - 2)) for name, reason in left_out.items()]
    yield Table("Predicted from one recording, then measured", PREDICT_COLUMNS, rows, PREDICT_NOTE)


def _comparison_row(each: Comparison) -> tuple[str, ...]:
    return (
        each.load,
        in_short(each.recorded),
        in_short(each.setting),
        f"{each.predicted:,.0f}",
        f"{each.measured:,.0f}",
        f"{each.error:+.0%}",
        each.bottleneck,
        "✓" if each.near else "✗",
    )


def grid_findings(results: Sequence[GridResult], left_out: LeftOut) -> Iterator[Line | Table]:
    for result in results:
        yield from _lines(result)
    for result in results:
        rows = [
            _grid_row(result, setting)
            for setting in sorted({*result.screened, *result.counted}, key=WorkerSettings.cost)
        ]
        title = f"{result.load}: tuned to {in_short(result.tuned)} in {result.tune_s:.0f} s"
        yield Table(title, GRID_COLUMNS, rows, GRID_NOTE)
    for name, reason in left_out.items():
        yield Table(name, ("left out",), [(reason,)], GRID_NOTE)


def _lines(result: GridResult) -> Iterator[Line]:
    name, rates = result.load, result.rates
    ours = f"{in_short(result.tuned)}: {rates[result.tuned]:,.0f} samples/s"
    best = f"{in_short(result.best)}: {rates[result.best]:,.0f}"
    yield Line(f"{name}: tuned against the grid's best", ours, best, result.of_best, TUNED, "at least")
    default = f"defaults: {rates[DEFAULT]:,.0f}"
    yield Line(f"{name}: tuned against torch's defaults", ours, default, result.of_default, AS_GOOD, "at least")
    surplus = result.tuned.workers - result.fewest
    fewest = f"fewest within {1 - AS_GOOD:.0%} of the best: {result.fewest}"
    yield Line(f"{name}: surplus workers", f"{result.tuned.workers} workers", fewest, surplus, 0, "at most")
    yield Line(
        f"{name}: seconds to tune", f"{result.tune_s:.0f} s", f"of {SECONDS:.0f}", result.tune_s, SECONDS, "at most"
    )


def _grid_row(result: GridResult, setting: WorkerSettings) -> tuple[str, ...]:
    screened, rate = result.screened.get(setting), result.rates.get(setting)
    return (
        in_short(setting),
        ", ".join(_roles(result, setting)),
        "" if screened is None else f"{screened:,.0f}",
        "" if rate is None else f"{rate:,.0f}",
        "" if rate is None else f"{rate / result.rates[result.best]:.2f}",
    )


def _roles(result: GridResult, setting: WorkerSettings) -> Iterator[str]:
    if setting == result.tuned:
        yield "tuned"
    if setting == result.best:
        yield "the grid's best"
    if setting == DEFAULT:
        yield "torch's defaults"
    if setting in REPORTED:
        yield "reports"


def in_short(setting: WorkerSettings) -> str:
    """Return a setting as workers/prefetch."""
    if not setting.workers:
        return "0"
    return f"{setting.workers}/{setting.prefetch}{'' if setting.in_order else ' out of order'}"

"""What the runs come to: a line for each figure to reach, and the tables they are read from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.plan.grid import AS_GOOD, DEFAULT, FOLKLORE, Course
from benchmarks.plan.predict import WITHIN, Judged
from benchmarks.result import Line, Table
from penstock.tuner.result import WorkerSettings
from penstock.tuner.tune import SECONDS

PREDICTED = 0.8
TUNED = 0.95
LeftOut = dict[str, str]
"""Loads that cannot be had here or did not come to an end, and why."""

PREDICT_COLUMNS = ("load", "recorded with", "setting", "predicted", "measured", "error", "what binds", "")
PREDICT_NOTE = (
    "Samples per second between starts of workers. For each load one run was recorded under one setting, as `penstock "
    "run` does, and `penstock plan`'s model asked for others; then those were measured, each run in a fresh process, "
    f"in turns, the median of the rounds. ✗: off by more than {WITHIN:.0%} of the measured rate."
)
GRID_COLUMNS = ("setting", "whose", "screened", "measured", "of the grid's best")
GRID_NOTE = (
    "Samples per second, each run in a fresh process. Every point of the grid (no workers; 1, 2, 4, 8 workers × "
    "prefetch 2, 4, 8) was screened by one short run. Those near the best, the tuned setting, torch's defaults and the "
    "field reports' settings then ran in turns, the order rotated: the median of the rounds. Not worse than torch's "
    f"defaults: {AS_GOOD:g} of them or more, since two runs of the same differ by as much."
)


def predict_findings(judged: Sequence[Judged], left_out: LeftOut) -> Iterator[Line | Table]:
    near = sum(each.near for each in judged)
    if judged:
        what = f"predicted rate within {WITHIN:.0%} of the measured one"
        yield Line(what, f"{near}", f"of {len(judged)} settings", near / len(judged), PREDICTED, "at least")
    rows = [_judged_row(each) for each in judged]
    rows += [(name, f"left out: {why}", *[""] * (len(PREDICT_COLUMNS) - 2)) for name, why in left_out.items()]
    yield Table("Predicted from one recording, then measured", PREDICT_COLUMNS, rows, PREDICT_NOTE)


def _judged_row(each: Judged) -> tuple[str, ...]:
    return (
        each.load,
        in_short(each.recorded),
        in_short(each.setting),
        f"{each.predicted:,.0f}",
        f"{each.measured:,.0f}",
        f"{each.error:+.0%}",
        each.binds,
        "✓" if each.near else "✗",
    )


def grid_findings(courses: Sequence[Course], left_out: LeftOut) -> Iterator[Line | Table]:
    for course in courses:
        yield from _lines(course)
    for course in courses:
        rows = [
            _grid_row(course, setting)
            for setting in sorted({*course.screened, *course.counted}, key=WorkerSettings.cost)
        ]
        title = f"{course.load}: tuned to {in_short(course.tuned)} in {course.tune_s:.0f} s"
        yield Table(title, GRID_COLUMNS, rows, GRID_NOTE)
    for name, why in left_out.items():
        yield Table(name, ("left out",), [(why,)], GRID_NOTE)


def _lines(course: Course) -> Iterator[Line]:
    name, rates = course.load, course.rates
    ours = f"{in_short(course.tuned)}: {rates[course.tuned]:,.0f} samples/s"
    best = f"{in_short(course.best)}: {rates[course.best]:,.0f}"
    yield Line(f"{name}: tuned against the grid's best", ours, best, course.of_best, TUNED, "at least")
    default = f"defaults: {rates[DEFAULT]:,.0f}"
    yield Line(f"{name}: tuned against torch's defaults", ours, default, course.of_default, AS_GOOD, "at least")
    more = course.tuned.workers - course.fewest
    fewest = f"fewest within {1 - AS_GOOD:.0%} of the best: {course.fewest}"
    yield Line(f"{name}: workers too many", f"{course.tuned.workers} workers", fewest, more, 0, "at most")
    yield Line(
        f"{name}: seconds to tune", f"{course.tune_s:.0f} s", f"of {SECONDS:.0f}", course.tune_s, SECONDS, "at most"
    )


def _grid_row(course: Course, setting: WorkerSettings) -> tuple[str, ...]:
    screened, rate = course.screened.get(setting), course.rates.get(setting)
    return (
        in_short(setting),
        ", ".join(_whose(course, setting)),
        "" if screened is None else f"{screened:,.0f}",
        "" if rate is None else f"{rate:,.0f}",
        "" if rate is None else f"{rate / course.rates[course.best]:.2f}",
    )


def _whose(course: Course, setting: WorkerSettings) -> Iterator[str]:
    if setting == course.tuned:
        yield "tuned"
    if setting == course.best:
        yield "the grid's best"
    if setting == DEFAULT:
        yield "torch's defaults"
    if setting in FOLKLORE:
        yield "reports"


def in_short(setting: WorkerSettings) -> str:
    """Workers/prefetch."""
    if not setting.workers:
        return "0"
    return f"{setting.workers}/{setting.prefetch}{'' if setting.in_order else ' out of order'}"

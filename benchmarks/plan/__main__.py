"""`make bench-plan`: what the model predicts and what tuning finds, beside what real DataLoaders then do."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.document import Finding, as_json, lines_of, show, write
from benchmarks.plan import grid, predict
from benchmarks.plan.loads import GRID_LOADS, LOADS, QUICK_LOADS, Load
from benchmarks.plan.report import LeftOut, grid_findings, in_short, predict_findings
from benchmarks.plan.times import FULL, QUICK
from penstock.errors import PenstockError

PARTS = ("predict", "grid")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PARTS, help="one part of it")
    parser.add_argument("--load", nargs="+", choices=LOADS, metavar="NAME", help="these only")
    parser.add_argument("--quick", action="store_true", help="short runs of a few loads: does all of it work?")
    parser.add_argument("--folder", type=Path, help="keep data and recordings here; on a disk, not in memory")
    parser.add_argument("--json", action="store_true", help="print the lines as JSON")
    parser.add_argument("--write", action="store_true", help="write the sections into docs/benchmarks.md")
    asked = parser.parse_args()
    found: dict[str, list[Finding]] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-plan-") as scratch:
        folder = asked.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        usual = QUICK_LOADS if asked.quick else tuple(LOADS)
        if asked.only != "grid":
            found["plan-predict"] = _predict(asked.load or usual, folder, quick=asked.quick)
        if asked.only != "predict":
            names = asked.load or [name for name in usual if name in GRID_LOADS]
            found["plan-grid"] = _grid(names, folder, quick=asked.quick)
    if asked.json:
        print(as_json(found))
    else:
        show(found)
    if asked.write:
        write(found)
    sys.exit(0 if all(line.reached for line in lines_of(found)) else 1)


def _predict(names: Sequence[str], folder: Path, *, quick: bool) -> list[Finding]:
    loads, left_out = _possible(names, folder)
    judged = []
    for load in loads:
        with _or_left_out(load, left_out):
            for each in predict.judge(load, folder, QUICK if quick else FULL):
                judged.append(each)
                case = f"{each.load} {in_short(each.setting)}"
                print(
                    f"{'✓' if each.near else '✗'} {case}: {each.predicted:.0f} predicted, {each.measured:.0f} measured "
                    f"({each.error:+.0%}, {each.binds})",
                    file=sys.stderr,
                )
    return list(predict_findings(judged, left_out))


def _grid(names: Sequence[str], folder: Path, *, quick: bool) -> list[Finding]:
    loads, left_out = _possible(names, folder)
    courses = []
    for load in loads:
        with _or_left_out(load, left_out):
            course = grid.run(load, folder, QUICK if quick else FULL, quick=quick)
            courses.append(course)
            said = (
                f"tuned to {in_short(course.tuned)} in {course.tune_s:.0f} s, {course.of_best:.2f} of the grid's best"
            )
            print(f"{load.name}: {said}", file=sys.stderr)
    return list(grid_findings(courses, left_out))


@contextmanager
def _or_left_out(load: Load, left_out: LeftOut) -> Iterator[None]:
    """A load that fails is told in its place: half an hour of the others must not be lost with it."""
    try:
        yield
    except PenstockError as error:
        left_out[load.name] = str(error)
        print(f"{load.name} left out: {error}", file=sys.stderr)


def _possible(names: Sequence[str], folder: Path) -> tuple[list[Load], LeftOut]:
    """Those that can be had here; the others with the reason."""
    missing = {name: LOADS[name].missing(folder) for name in names}
    left_out = {name: why for name, why in missing.items() if why is not None}
    for name, why in left_out.items():
        print(f"{name} left out: {why}", file=sys.stderr)
    return [LOADS[name] for name in names if name not in left_out], left_out


if __name__ == "__main__":
    main()

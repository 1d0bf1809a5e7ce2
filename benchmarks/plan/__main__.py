"""Compares predictions and tuning with measured rates of real DataLoaders: `make bench-plan`.

predict: the rates that `penstock plan` predicts from one recording, against measured rates. grid: the setting that
`penstock.tune` chooses, against every setting of a grid.
"""

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
    parser.add_argument("--only", choices=PARTS, help="run only this part")
    parser.add_argument("--load", nargs="+", choices=LOADS, metavar="NAME", help="only these loads")
    parser.add_argument(
        "--quick", action="store_true", help="short runs of a few loads, only to check that everything works"
    )
    parser.add_argument(
        "--folder", type=Path, help="folder for data and recordings, which are kept; it must be on a disk"
    )
    parser.add_argument("--json", action="store_true", help="print the lines as JSON")
    parser.add_argument("--write", action="store_true", help="write the sections into docs/benchmarks.md")
    options = parser.parse_args()
    found: dict[str, list[Finding]] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-plan-") as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        default_names = QUICK_LOADS if options.quick else tuple(LOADS)
        if options.only != "grid":
            found["plan-predict"] = _predict(options.load or default_names, folder, quick=options.quick)
        if options.only != "predict":
            names = options.load or [name for name in default_names if name in GRID_LOADS]
            found["plan-grid"] = _grid(names, folder, quick=options.quick)
    if options.json:
        print(as_json(found))
    else:
        show(found)
    if options.write:
        write(found)
    sys.exit(0 if all(line.reached for line in lines_of(found)) else 1)


def _predict(names: Sequence[str], folder: Path, *, quick: bool) -> list[Finding]:
    loads, left_out = _possible(names, folder)
    comparisons = []
    for load in loads:
        with _record_failure(load, left_out):
            for each in predict.compare(load, folder, QUICK if quick else FULL):
                comparisons.append(each)
                case = f"{each.load} {in_short(each.setting)}"
                print(
                    f"{'✓' if each.near else '✗'} {case}: {each.predicted:.0f} predicted, {each.measured:.0f} measured "
                    f"({each.error:+.0%}, {each.bottleneck})",
                    file=sys.stderr,
                )
    return list(predict_findings(comparisons, left_out))


def _grid(names: Sequence[str], folder: Path, *, quick: bool) -> list[Finding]:
    loads, left_out = _possible(names, folder)
    results = []
    for load in loads:
        with _record_failure(load, left_out):
            result = grid.run(load, folder, QUICK if quick else FULL, quick=quick)
            results.append(result)
            chosen = f"tuned to {in_short(result.tuned)} in {result.tune_s:.0f} s"
            print(f"{load.name}: {chosen}, {result.of_best:.2f} of the grid's best", file=sys.stderr)
    return list(grid_findings(results, left_out))


@contextmanager
def _record_failure(load: Load, left_out: LeftOut) -> Iterator[None]:
    """Record and print why a load failed, instead of losing the results of the others, which take half an hour."""
    try:
        yield
    except PenstockError as error:
        left_out[load.name] = str(error)
        print(f"{load.name} left out: {error}", file=sys.stderr)


def _possible(names: Sequence[str], folder: Path) -> tuple[list[Load], LeftOut]:
    """Return the loads that this machine can run, and the others with the reason why it cannot."""
    missing = {name: LOADS[name].missing(folder) for name in names}
    left_out = {name: reason for name, reason in missing.items() if reason is not None}
    for name, reason in left_out.items():
        print(f"{name} left out: {reason}", file=sys.stderr)
    return [LOADS[name] for name in names if name not in left_out], left_out


if __name__ == "__main__":
    main()

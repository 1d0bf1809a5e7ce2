"""`python -m benchmarks.faults_independent`: diagnose trainings whose faults were made without knowing the rules."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.document import show, write
from benchmarks.faults_independent import score
from benchmarks.faults_independent.cases import CASES, SIZES, Case, Size
from benchmarks.faults_independent.run import Measured, judge, measure, missing

SECTION = "faults-independent"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print all cases and run nothing")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[], help="run only these cases")
    parser.add_argument("--quick", action="store_true", help="run only the small size of each case")
    parser.add_argument(
        "--rounds", type=int, default=1, help="runs with and without each fault, in turns; medians count"
    )
    parser.add_argument("--measure-only", action="store_true", help="record and measure; diagnose later by --again")
    parser.add_argument("--again", action="store_true", help="run nothing: diagnose the recordings in the folder")
    parser.add_argument("--folder", type=Path, help="keep data, recordings and results here; on a disk, not in memory")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--write", action="store_true", help="write the section into docs/benchmarks.md")
    options = parser.parse_args()
    if unknown := set(options.only) - {case.name for case in CASES}:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; --list prints all")
    if (options.again or options.measure_only) and not options.folder:
        parser.error("--again and --measure-only need a --folder that is kept")
    chosen = [case for case in CASES if not options.only or case.name in options.only]
    if options.list:
        for case in chosen:
            print(f"{case.name}: {case.fault}\n    {', '.join(case.accepted) or 'nothing'} · against {case.truth}")
        return
    with tempfile.TemporaryDirectory(prefix="penstock-independent-") as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        measured = _saved(folder) if options.again else _measure(chosen, options, folder)
        if options.measure_only:
            return
        cases = {case.name: case for case in chosen}
        results = [judge(cases[each.name], each, folder) for each in measured if each.name in cases]
    if options.json:
        print(json.dumps([asdict(result) | {"outcome": score.outcome(result)} for result in results], indent=2))
    if not results:
        sys.exit("no case ran")
    found = {SECTION: [*score.lines(results), score.table(results)]}
    if not options.json:
        show(found)
    if options.write:
        write(found)
    sys.exit(0 if all(line.reached for line in score.lines(results)) else 1)


def _measure(chosen: list[Case], options: argparse.Namespace, folder: Path) -> list[Measured]:
    sizes: tuple[Size, ...] = SIZES[:1] if options.quick else SIZES
    kept = {(each.name, each.size): each for each in _saved(folder)}
    done = []
    for case in chosen:
        if reason := missing(case):
            print(f"skipped {case.name}: {reason}", file=sys.stderr)
            continue
        for size in sizes:
            start = time.monotonic()
            try:
                each = measure(case, size, folder, options.rounds)
            except (RuntimeError, TimeoutError, OSError) as error:
                print(f"failed {case.name} {size}: {error}", file=sys.stderr)
                continue
            done.append(each)
            kept[case.name, size] = each
            (folder / "measured.json").write_text(json.dumps([asdict(one) for one in kept.values()], indent=2))
            _report(each, time.monotonic() - start)
    return done


def _saved(folder: Path) -> list[Measured]:
    file = folder / "measured.json"
    return [Measured(**each) for each in json.loads(file.read_text())] if file.exists() else []


def _report(each: Measured, seconds: float) -> None:
    slow, quick = each.rates
    print(
        f"{each.name} {each.size}: {slow:.0f} to {quick:.0f} samples/s ({quick / slow - 1:+.0%}), "
        f"others {each.other_cores:.1f} cores, {seconds:.0f} s",
        file=sys.stderr,
        flush=True,
    )


if __name__ == "__main__":
    main()

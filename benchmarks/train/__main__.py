"""`python -m benchmarks.train`: the time of samplers, of reading in their order, and of helpers in a training step."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable

from benchmarks.document import Finding, as_json, lines_of, show, write
from benchmarks.result import Line
from benchmarks.train import reading, samplers, steps

SUITES: dict[str, Callable[[], Iterable[Finding]]] = {
    "train-samplers": samplers.measure,
    "train-reading": reading.measure,
    "train-steps": steps.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", choices=[[], *SUITES], help="which suites to run; default: all")
    parser.add_argument("--json", action="store_true", help="print the lines as JSON")
    parser.add_argument("--write", action="store_true", help="write the sections into docs/benchmarks.md")
    options = parser.parse_args()
    found: dict[str, list[Finding]] = {}
    for name in options.suites or SUITES:
        found[name] = []
        for finding in SUITES[name]():
            found[name].append(finding)
            if isinstance(finding, Line):
                print(f"{finding.what}: {finding.ratio:.3g}", file=sys.stderr)
    if options.json:
        print(as_json(found))
    else:
        show(found)
    if options.write:
        write(found)
    sys.exit(0 if all(line.reached for line in lines_of(found)) else 1)


if __name__ == "__main__":
    main()

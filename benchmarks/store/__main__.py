"""Measures the rate of each loader on a store with high latency: `python -m benchmarks.store` or `make bench-store`."""

from __future__ import annotations

import argparse
import sys

import msgspec

from benchmarks.document import Finding, as_json, lines_of, show, write
from benchmarks.peers.compare import Result
from benchmarks.peers.environment import run_comparison
from benchmarks.store.compare import MB_S
from benchmarks.store.report import findings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mb-s", type=float, default=MB_S, help="the store's bandwidth in MB/s")
    parser.add_argument("--quick", action="store_true", help="a few samples, only to check that every loader runs")
    parser.add_argument("--json", action="store_true", help="print the lines as JSON")
    parser.add_argument("--write", action="store_true", help="write the section into docs/benchmarks.md")
    arguments = parser.parse_args()
    options = [
        "--rounds",
        str(arguments.rounds),
        "--mb-s",
        str(arguments.mb_s),
        *(["--quick"] if arguments.quick else []),
    ]
    results = msgspec.json.decode(run_comparison("benchmarks.store.compare", options), type=list[Result])
    found: dict[str, list[Finding]] = {"store": list(findings(results, arguments.mb_s))}
    if arguments.json:
        print(as_json(found))
    else:
        show(found)
    if arguments.write:
        write(found)
    sys.exit(0 if all(line.reached for line in lines_of(found)) else 1)


if __name__ == "__main__":
    main()

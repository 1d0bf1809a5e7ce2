"""Run the benchmarks of the CPU path (`make bench`); `--write` puts the results into docs/benchmarks.md.

Each benchmark is one section of the page. The exit code is 1 if a line missed its target.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import msgspec

from benchmarks import cold, dataloader, guards, index, memory, order, overhead, pack, pairs, ranks, ray, straggler
from benchmarks.document import DOCUMENT, Finding, as_json, lines_of, show, write
from benchmarks.peers import environment, report
from benchmarks.peers.compare import Results
from benchmarks.peers.kinds import KINDS
from benchmarks.result import Line


def guard_lines() -> Iterator[Line]:
    """Return one line for each kind of sample."""
    for row in guards.measure():
        guard, decode = f"{row.guard_s * 1e6:.1f} µs", f"decode: {row.decode_s * 1e6:.0f} µs"
        yield Line(f"guard {row.sample}", guard, decode, row.share, guards.TARGET, "at most")


def peer_findings(kind: str) -> Iterator[Finding]:
    """Compare the loaders over one kind of shards, in the peers' environment."""
    results = msgspec.json.decode(environment.run_comparison("benchmarks.peers.compare", [kind]), type=Results)
    yield from report.lines(results)
    yield from report.tables(results)


SUITES: dict[str, Callable[[], Iterable[Finding]]] = {
    "index": index.measure,
    "pairs": pairs.measure,
    "order": order.measure,
    "guards": guard_lines,
    "pack": pack.measure,
    "ray": ray.measure,
    "ranks": ranks.measure,
    "straggler": straggler.measure,
    "dataloader": dataloader.measure,
    "cold": cold.measure,
    "memory": memory.measure,
    "overhead": overhead.measure,
    **{f"peers-{kind}": partial(peer_findings, kind) for kind in KINDS},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", choices=[[], *SUITES], help="which ones; all if none is named")
    parser.add_argument("--json", action="store_true", help="print the lines as JSON")
    parser.add_argument("--write", action="store_true", help=f"write the sections that ran into {DOCUMENT.name}")
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

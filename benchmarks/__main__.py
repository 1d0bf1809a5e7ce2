"""`make bench`: every benchmark of ours, one table; `--write` puts it into docs/benchmarks.md."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from datetime import date
from pathlib import Path

from rich.console import Console

from benchmarks import guards, index, pack, pairs
from benchmarks.result import Line, machine
from penstock.report.text import table

DOCUMENT = Path(__file__).parent.parent / "docs" / "benchmarks.md"


def guard_lines() -> Iterator[Line]:
    for row in guards.measure():
        guard, decode = f"{row.guard_s * 1e6:.1f} µs", f"decode: {row.decode_s * 1e6:.0f} µs"
        yield Line(f"guard {row.sample}", guard, decode, row.share, guards.TARGET, "at most")


SUITES: dict[str, Callable[[], Iterable[Line]]] = {
    "index": index.measure,
    "pairs": pairs.measure,
    "guards": guard_lines,
    "pack": pack.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", choices=[[], *SUITES], help="which ones; all if none is named")
    parser.add_argument("--json", action="store_true", help="print the lines as JSON")
    parser.add_argument("--write", action="store_true", help=f"write {DOCUMENT.name}")
    wanted = parser.parse_args()
    lines: list[Line] = []
    for name in wanted.suites or SUITES:
        for line in SUITES[name]():
            lines.append(line)
            print(f"{line.what}: {line.ratio:.3g}", file=sys.stderr)
    if wanted.json:
        print(json.dumps([asdict(line) | {"reached": line.reached} for line in lines], indent=2))
    else:
        columns = ("what", "ours", "against", "ratio", "to reach", "")
        Console().print(table(machine(), columns, [_cells(line) for line in lines], right=("ratio",)))
    if wanted.write:
        _write(lines)
    sys.exit(0 if all(line.reached for line in lines) else 1)


def _cells(line: Line) -> tuple[str, ...]:
    number = f"{line.ratio:.1f}" if line.ratio >= 2 else f"{line.ratio:.3f}"
    return line.what, line.ours, line.other, number, f"{line.sense} {line.target:g}", "✓" if line.reached else "✗"


def _write(lines: list[Line]) -> None:
    rows = "\n".join("| " + " | ".join(_cells(line)) + " |" for line in lines)
    DOCUMENT.write_text(
        "# Benchmarks\n\n"
        "Written by `make bench ARGS=--write`. Both sides of a line ran in one run, in turns, the order rotated; the\n"
        "ratio is the median of the rounds' own ratios. Absolute figures move from machine to machine.\n\n"
        f"{machine()}, {date.today().isoformat()}.\n\n"
        "| what | ours | against | ratio | to reach | |\n|---|---|---|---|---|---|\n"
        f"{rows}\n"
    )


if __name__ == "__main__":
    main()

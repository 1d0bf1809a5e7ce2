"""`make bench`: every benchmark of ours, one section each; `--write` puts those that ran into docs/benchmarks.md."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import date
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks import cold, guards, index, memory, order, overhead, pack, pairs, straggler
from benchmarks.peers import suite as peers
from benchmarks.peers.kinds import KINDS
from benchmarks.result import Line, Table, machine
from penstock.report.text import table

DOCUMENT = Path(__file__).parent.parent / "docs" / "benchmarks.md"
INTRODUCTION = """\
# Benchmarks

Written by `make bench ARGS=--write`. Both sides of a line ran in one run, in turns, the order rotated; the
ratio is the median of the rounds' own ratios. Absolute figures move from machine to machine.
"""
COLUMNS = ("what", "ours", "against", "ratio", "to reach", "")

Finding = Line | Table


def guard_lines() -> Iterator[Line]:
    for row in guards.measure():
        guard, decode = f"{row.guard_s * 1e6:.1f} µs", f"decode: {row.decode_s * 1e6:.0f} µs"
        yield Line(f"guard {row.sample}", guard, decode, row.share, guards.TARGET, "at most")


SUITES: dict[str, Callable[[], Iterable[Finding]]] = {
    "index": index.measure,
    "pairs": pairs.measure,
    "order": order.measure,
    "guards": guard_lines,
    "pack": pack.measure,
    "straggler": straggler.measure,
    "cold": cold.measure,
    "memory": memory.measure,
    "overhead": overhead.measure,
    **{f"peers-{kind}": partial(peers.measure, [kind]) for kind in KINDS},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", choices=[[], *SUITES], help="which ones; all if none is named")
    parser.add_argument("--json", action="store_true", help="print the lines as JSON")
    parser.add_argument("--write", action="store_true", help=f"write the sections that ran into {DOCUMENT.name}")
    wanted = parser.parse_args()
    found: dict[str, list[Finding]] = {}
    for name in wanted.suites or SUITES:
        found[name] = []
        for finding in SUITES[name]():
            found[name].append(finding)
            if isinstance(finding, Line):
                print(f"{finding.what}: {finding.ratio:.3g}", file=sys.stderr)
    lines = [line for findings in found.values() for line in findings if isinstance(line, Line)]
    if wanted.json:
        print(json.dumps([asdict(line) | {"reached": line.reached} for line in lines], indent=2))
    else:
        _print(lines, [each for findings in found.values() for each in findings if isinstance(each, Table)])
    if wanted.write:
        _write(found)
    sys.exit(0 if all(line.reached for line in lines) else 1)


def _print(lines: Sequence[Line], tables: Sequence[Table]) -> None:
    console = Console()
    for each in tables:
        console.print(table(each.title, each.columns, each.rows, right=each.columns[2:]))
    console.print(table(machine(), COLUMNS, [_cells(line) for line in lines], right=("ratio",)))


def _cells(line: Line) -> tuple[str, ...]:
    number = f"{line.ratio:.1f}" if line.ratio >= 2 else f"{line.ratio:.3f}"
    return line.what, line.ours, line.other, number, f"{line.sense} {line.target:g}", "✓" if line.reached else "✗"


def _write(found: dict[str, list[Finding]]) -> None:
    """Sections of suites that did not run stay as they are, with the machine and the day of their own."""
    written = _sections(DOCUMENT.read_text()) if DOCUMENT.exists() else {}
    written |= {name: _section(findings) for name, findings in found.items()}
    parts = [f"\n## {name}\n\n{written[name]}\n" for name in SUITES if name in written]
    DOCUMENT.write_text(INTRODUCTION + "".join(parts))


def _sections(document: str) -> dict[str, str]:
    _, *parts = re.split(r"^## (.*)\n", document, flags=re.MULTILINE)
    return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}


def _section(findings: Sequence[Finding]) -> str:
    lines = [_cells(finding) for finding in findings if isinstance(finding, Line)]
    blocks = [f"{machine()}, {date.today().isoformat()}.", _markdown(COLUMNS, lines)]
    tables = [finding for finding in findings if isinstance(finding, Table)]
    blocks += [f"### {each.title}\n\n{_markdown(each.columns, each.rows)}" for each in tables]
    blocks += dict.fromkeys(each.note for each in tables)
    return "\n\n".join(blocks)


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = [columns, ["---"] * len(columns)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in [*head, *rows])


if __name__ == "__main__":
    main()

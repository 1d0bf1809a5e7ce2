"""Prints the results of benchmarks, as tables or as JSON, and writes them into sections of docs/benchmarks.md."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path

from rich.console import Console

from benchmarks.result import Line, Table, machine
from penstock.report.text import table

DOCUMENT = Path(__file__).parent.parent / "docs" / "benchmarks.md"
INTRODUCTION = """\
# Benchmarks

The sections are written by `make bench`, `make bench-faults`, `make bench-faults-independent`, `make bench-field`,
`make bench-plan`, `make bench-train`, `make examples`, `make bench-gpu`, `make bench-store` and `make soak`, each with
`ARGS=--write`. Both sides of a line ran in one run and in turns, and the order rotated from round to round; the ratio
is the median of the ratios of the rounds. In the section gpu this holds for the trainings and the transform. Loaders
that are compared there ran in turns too, but their ratio is that of their medians; the other rows were measured once,
as were those of faults-independent and field, whose sides ran one after the other. Absolute figures differ from machine
to machine.
"""
COLUMNS = ("what", "ours", "against", "ratio", "to reach", "")

Finding = Line | Table
Findings = Mapping[str, Sequence[Finding]]
"""Results by the name of the section they belong to."""


def lines_of(found: Findings) -> list[Line]:
    """Return the lines of all sections, without the tables."""
    return [finding for findings in found.values() for finding in findings if isinstance(finding, Line)]


def show(found: Findings) -> None:
    """Print the tables, their notes and then all lines to the terminal."""
    console = Console()
    tables = [finding for findings in found.values() for finding in findings if isinstance(finding, Table)]
    for each in tables:
        console.print(table(each.title, each.columns, each.rows, right=each.columns[2:]))
    for note in dict.fromkeys(each.note for each in tables):
        console.print(note)
    console.print(table(machine(), COLUMNS, [_cells(line) for line in lines_of(found)], right=("ratio",)))


def as_json(found: Findings) -> str:
    """Return the lines as a JSON list; tables are left out."""
    return json.dumps([asdict(line) | {"reached": line.reached} for line in lines_of(found)], indent=2)


def write(found: Findings) -> None:
    """Replace the sections that ran; the others keep their text, machine and date. New sections are appended."""
    written = _sections(DOCUMENT.read_text()) if DOCUMENT.exists() else {}
    written |= {name: _section(findings) for name, findings in found.items()}
    DOCUMENT.write_text(INTRODUCTION + "".join(f"\n## {name}\n\n{text}\n" for name, text in written.items()))


def _cells(line: Line) -> tuple[str, ...]:
    number = f"{line.ratio:.1f}" if line.ratio >= 2 else f"{line.ratio:.3f}"
    return line.what, line.ours, line.other, number, f"{line.sense} {line.target:g}", "✓" if line.reached else "✗"


def _sections(document: str) -> dict[str, str]:
    _, *parts = re.split(r"^## (.*)\n", document, flags=re.MULTILINE)
    return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}


def _section(findings: Sequence[Finding]) -> str:
    lines = [_cells(finding) for finding in findings if isinstance(finding, Line)]
    blocks = [f"{machine()}, {date.today().isoformat()}.", table_markdown(COLUMNS, lines)]
    tables = [finding for finding in findings if isinstance(finding, Table)]
    blocks += [f"### {each.title}\n\n{table_markdown(each.columns, each.rows)}" for each in tables]
    blocks += dict.fromkeys(each.note for each in tables)
    return "\n\n".join(blocks)


def table_markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in GitHub's Markdown."""
    head = [columns, ["---"] * len(columns)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in [*head, *rows])

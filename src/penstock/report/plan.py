"""A plan as a terminal shows it, and as a document: what, now, then, gain, why, at what cost; and what limits it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.core.format import format_bytes, format_gain
from penstock.core.plan import Change, Plan
from penstock.errors import printable
from penstock.plan.batch_size_sweep import Sweep
from penstock.plan.predict import LIMIT_NAMES
from penstock.report.diagnosis import full_stop
from penstock.report.markdown import escaped
from penstock.report.text import table

SCOPES = {"dataloader": "DataLoader", "loader": "Loader", "data": "data", "step": "step"}
"""Who is set, in words; Loader is penstock's."""
SOURCES = {"recording": "a recording", "probes": "probes", "dataset": "a dataset"}
LONGEST_VALUE = 60
"""Characters of a value in a table: what is longer is cut with a …"""


def plan_text(plan: Plan) -> RenderableType:
    """For `Console.print`: the sum first, then each change with its reason, what limits the rate, and notes."""
    parts: list[RenderableType] = [Text(printable(headline(plan)), style="bold green" if plan.changes else "bold")]
    if plan.changes:
        columns = ("", "of", "setting", "now", "then", "samples/s")
        reasons = _listed((f"{number}.", _why(change)) for number, change in enumerate(plan.changes, 1))
        parts += [table("", columns, _change_rows(plan), right=("", "samples/s")), reasons, Text()]
    if plan.limits:
        parts.append(table("What limits it", ("limit", "samples/s", ""), _limit_rows(plan), right=("samples/s",)))
    parts += [Text(printable(sentence)) for sentence in _sentences(plan)]
    if plan.notes:
        parts.append(_listed(("·", note) for note in plan.notes))
    return Group(*parts)


def plan_markdown(plan: Plan) -> str:
    """The same as a document."""
    lines = ["# What to change", "", escaped(headline(plan)), ""]
    if plan.changes:
        lines += ["## Changes", ""]
        lines += _markdown_table(
            ("", "of", "setting", "now", "then", "samples/s", "why", "cost"),
            [
                (*row, full_stop(change.reason), change.cost)
                for row, change in zip(_change_rows(plan), plan.changes, strict=True)
            ],
        )
        lines.append("")
    if plan.limits:
        lines += ["## Limits", "", *_markdown_table(("limit", "samples/s", ""), _limit_rows(plan)), ""]
    lines += ["## Prediction", "", *(f"- {escaped(sentence)}" for sentence in _sentences(plan)), ""]
    if plan.notes:
        lines += ["## Notes", "", *(f"- {escaped(note)}" for note in plan.notes), ""]
    return "\n".join(lines).rstrip() + "\n"


def sweep_table(sweep: Sweep) -> Table:
    """Samples per second first: steps per second fall with the batch size whatever the speed."""
    rows = [
        (
            f"{row.size:,}{' ← knee' if row.size == sweep.knee else ''}",
            row.failed or f"{row.samples_s:,.4g}",
            "" if row.it_s is None else f"{row.it_s:,.3g}",
            "" if row.peak_bytes is None else format_bytes(row.peak_bytes),
        )
        for row in sweep.rows
    ]
    columns = ("batch size", "samples/s", "steps/s", "memory at most")
    return table("Batch sizes", columns, rows, right=columns[1:])


# -- words -----------------------------------------------------------------------------------------------------------


def headline(plan: Plan) -> str:
    """`3 changes: 36 → 71.5 samples/s (+99%) by those to DataLoader and step, predicted.`"""
    number = len(plan.changes)
    count = f"{number} change{'' if number == 1 else 's'}" if number else "Nothing to change"
    if not plan.samples_s:
        return f"{count}."
    counted = any(change.gain and change.scope in ("dataloader", "step") for change in plan.changes)
    if not counted or plan.planned_samples_s is None:
        return (
            f"{count}: {plan.samples_s:,.4g} samples/s {'as it runs' if plan.source == 'recording' else 'predicted'}."
        )
    gain = format_gain(plan.planned_samples_s / plan.samples_s - 1)
    rates = f"{plan.samples_s:,.4g} → {plan.planned_samples_s:,.4g} samples/s ({gain})"
    return f"{count}: {rates} by those to DataLoader and step, predicted."


def _change_rows(plan: Plan) -> list[tuple[str, ...]]:
    return [
        (
            str(number),
            SCOPES[change.scope],
            change.name,
            "–" if change.now is None else _value(change.now),
            _value(change.then),
            format_gain(change.gain),
        )
        for number, change in enumerate(plan.changes, 1)
    ]


def _listed(items: Iterable[tuple[str, str]]) -> Table:
    """A mark, and beside it the text however long it is."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right")
    grid.add_column(overflow="fold")
    for mark, text in items:
        grid.add_row(mark, Text(printable(text)))
    return grid


def _why(change: Change) -> str:
    cost = f" Cost: {full_stop(change.cost)}" if change.cost else ""
    return f"{full_stop(change.reason)}{cost}"


def _limit_rows(plan: Plan) -> list[tuple[str, ...]]:
    order = ("binds first", "binds next")
    return [
        (LIMIT_NAMES.get(limit.name, limit.name), f"{limit.samples_s:,.4g}", order[at] if at < len(order) else "")
        for at, limit in enumerate(plan.limits)
    ]


def _sentences(plan: Plan) -> Iterator[str]:
    """What is predicted, beside the changes."""
    if plan.most_gain is not None and isfinite(plan.most_gain):
        yield (
            f"No change to the supply of data can give more than {format_gain(plan.most_gain)}: "
            "then the step alone sets the pace."
        )
    if plan.memory_bytes is not None:
        yield f"The planned loader needs about {format_bytes(plan.memory_bytes)} of the host's memory."
    if plan.dataloader:
        yield f"For torch's DataLoader: {_settings(plan.dataloader)}."
    if plan.loader:
        yield f"For penstock.Loader: {_settings(plan.loader)}."
    yield f"Made from {SOURCES[plan.source]}, profile {plan.profile}."


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_value(value)}" for name, value in settings.items())


def _value(value: Any) -> str:
    if isinstance(value, Mapping | list | tuple):
        text = msgspec.json.encode(value, enc_hook=str).decode()
    else:
        text = str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def _markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(escaped(cell) for cell in row)} |"

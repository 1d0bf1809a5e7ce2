"""`penstock plan`: a plan for a terminal and as a document: each change with its reason, limits and predictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from penstock.core.format import format_bytes, format_count, format_gain
from penstock.core.plan import Change, Plan
from penstock.errors import printable
from penstock.plan.predict import LIMIT_NAMES
from penstock.report.text import end_sentence, escape_markdown, listing, markdown_table, table

SCOPES = {"dataloader": "DataLoader", "loader": "Loader", "data": "data", "step": "step"}
"""The subject of a change, as printed; Loader is penstock's."""
SOURCES = {"recording": "a recording", "probes": "probes", "dataset": "a dataset"}
VALUE_LENGTH = 60
"""Characters of a value in a table; a longer one is cut and ends in "…"."""


def plan_text(plan: Plan) -> RenderableType:
    """Return the plan for `Console.print`: headline, changes with reasons, limits, prediction, notes."""
    parts: list[RenderableType] = [Text(printable(headline(plan)), style="bold green" if plan.changes else "bold")]
    if plan.changes:
        columns = ("", "of", "setting", "now", "then", "samples/s")
        reasons = listing((f"{number}.", _reason(change)) for number, change in enumerate(plan.changes, 1))
        parts += [table("", columns, _change_rows(plan), right=("", "samples/s")), reasons, Text()]
    if plan.limits:
        parts.append(table("What limits it", ("limit", "samples/s", ""), _limit_rows(plan), right=("samples/s",)))
    parts += [Text(printable(sentence)) for sentence in _predictions(plan)]
    if plan.notes:
        parts.append(listing(("·", note) for note in plan.notes))
    return Group(*parts)


def plan_markdown(plan: Plan) -> str:
    """Return the plan as a Markdown document."""
    lines = ["# What to change", "", escape_markdown(headline(plan)), ""]
    if plan.changes:
        lines += ["## Changes", ""]
        lines += markdown_table(
            ("", "of", "setting", "now", "then", "samples/s", "why", "cost"),
            [
                (*row, end_sentence(change.reason), change.cost)
                for row, change in zip(_change_rows(plan), plan.changes, strict=True)
            ],
        )
        lines.append("")
    if plan.limits:
        lines += ["## Limits", "", *markdown_table(("limit", "samples/s", ""), _limit_rows(plan)), ""]
    lines += ["## Prediction", "", *(f"- {escape_markdown(sentence)}" for sentence in _predictions(plan)), ""]
    if plan.notes:
        lines += ["## Notes", "", *(f"- {escape_markdown(note)}" for note in plan.notes), ""]
    return "\n".join(lines).rstrip() + "\n"


def headline(plan: Plan) -> str:
    """Return the sum: `3 changes: 36 → 71.5 samples/s (+99%) by those to DataLoader and step, predicted.`"""
    count = format_count(len(plan.changes), "change") if plan.changes else "Nothing to change"
    if not plan.samples_s:
        return f"{count}."
    counted = any(change.gain and change.scope in ("dataloader", "step") for change in plan.changes)
    if not counted or plan.planned_samples_s is None:
        basis = "as it runs" if plan.source == "recording" else "predicted"
        return f"{count}: {plan.samples_s:,.4g} samples/s {basis}."
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


def _reason(change: Change) -> str:
    cost = f" Cost: {end_sentence(change.cost)}" if change.cost else ""
    return f"{end_sentence(change.reason)}{cost}"


def _limit_rows(plan: Plan) -> list[tuple[str, ...]]:
    order = ("binds first", "binds next")
    return [
        (
            LIMIT_NAMES.get(limit.name, limit.name),
            f"{limit.samples_s:,.4g}",
            order[number] if number < len(order) else "",
        )
        for number, limit in enumerate(plan.limits)
    ]


def _predictions(plan: Plan) -> Iterator[str]:
    """Yield what is predicted in addition to the changes, and the settings in one line each."""
    if plan.most_gain is not None and isfinite(plan.most_gain):
        yield (
            f"No change to loading can give more than {format_gain(plan.most_gain)}: "
            "then the step alone limits the rate."
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
    return text if len(text) <= VALUE_LENGTH else f"{text[:VALUE_LENGTH]}…"

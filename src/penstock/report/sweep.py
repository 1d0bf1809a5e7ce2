"""A sweep over batch sizes, for a terminal and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from penstock.errors import printable
from penstock.plan.batch_size import BatchSizeChange
from penstock.plan.batch_size_sweep import KNEE_TOLERANCE, Sweep
from penstock.report.plan import sweep_table
from penstock.report.text import table

RULES = {"linear": "linear (SGD)", "sqrt": "square root (Adam)"}


def sweep_text(sweep: Sweep, change: BatchSizeChange | None) -> RenderableType:
    """The sizes, the knee, and what it means for the training that there is."""
    parts: list[RenderableType] = [sweep_table(sweep), Text(_knee(sweep))]
    if change is not None:
        if change.scalings:
            rows = [
                (RULES[scaling.rule], f"{scaling.learning_rate:.4g}", f"{scaling.warm_up_steps:,}")
                for scaling in change.scalings
            ]
            title = f"Learning rate, from batches of {change.batch_size:,} to {change.then:,}"
            parts.append(table(title, ("rule", "rate", "warm-up steps"), rows, right=("rate", "warm-up steps")))
        parts += [Text(printable(sentence)) for sentence in _sentences(change)]
    return Group(*parts)


def sweep_document(sweep: Sweep, change: BatchSizeChange | None) -> dict[str, Any]:
    """The same as plain values."""
    document: dict[str, Any] = {
        "rows": [asdict(row) for row in sweep.rows],
        "knee": sweep.knee,
        "best": sweep.best.size,
        "learning_rates": [],
        "accumulation": None,
        "note": "",
    }
    if change is not None:
        document["learning_rates"] = [asdict(scaling) for scaling in change.scalings]
        document |= {"accumulation": change.accumulation, "note": change.note}
    return document


def _knee(sweep: Sweep) -> str:
    best = sweep.best
    if sweep.knee == best.size:
        return f"{best.size:,} is the knee: no smaller size is within {KNEE_TOLERANCE:.0%} of its {best.samples_s:,.4g} samples/s."
    return (
        f"{sweep.knee:,} is the knee: the smallest size within {KNEE_TOLERANCE:.0%} of the best, "
        f"{best.samples_s:,.4g} samples/s at {best.size:,}. Beyond it more memory buys nothing."
    )


def _sentences(change: BatchSizeChange) -> Iterator[str]:
    if change.then == change.batch_size:
        yield "That is the size there is: nothing else changes."
    elif change.accumulation is not None:
        yield (
            f"To train as with batches of {change.batch_size:,}: {change.accumulation} batches of {change.then:,} for "
            "each optimizer step, and the learning rate as it is."
        )
    if change.note:
        yield f"{change.note.rstrip('.')}."

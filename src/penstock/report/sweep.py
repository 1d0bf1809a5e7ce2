"""`penstock sweep`: the rate and memory at each batch size, and what the best size means for the training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.core.format import format_bytes
from penstock.errors import printable
from penstock.plan.batch_size import BatchSizeChange
from penstock.plan.batch_size_sweep import KNEE_TOLERANCE, Sweep
from penstock.report.text import end_sentence, table

RULES = {"linear": "linear (SGD)", "sqrt": "square root (Adam)"}


def sweep_text(sweep: Sweep, change: BatchSizeChange | None) -> RenderableType:
    """Return the sizes, the knee, and what the change of the batch size means for the training, if one was planned."""
    parts: list[RenderableType] = [sweep_table(sweep), Text(_knee_sentence(sweep))]
    if change is not None:
        if change.scalings:
            rows = [
                (RULES[scaling.rule], f"{scaling.learning_rate:.4g}", f"{scaling.warm_up_steps:,}")
                for scaling in change.scalings
            ]
            title = f"Learning rate, from batches of {change.batch_size:,} to {change.then:,}"
            parts.append(table(title, ("rule", "rate", "warm-up steps"), rows, right=("rate", "warm-up steps")))
        parts += [Text(printable(sentence)) for sentence in _change_sentences(change)]
    return Group(*parts)


def sweep_table(sweep: Sweep) -> Table:
    """Return the sizes; samples/s come first, because steps/s fall with the batch size at any speed."""
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


def sweep_document(sweep: Sweep, change: BatchSizeChange | None) -> dict[str, Any]:
    """Return the sweep as plain values for JSON."""
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


def _knee_sentence(sweep: Sweep) -> str:
    best, near = sweep.best, f"{KNEE_TOLERANCE:.0%}"
    if sweep.knee == best.size:
        return f"{best.size:,} is the knee: no smaller size is within {near} of its {best.samples_s:,.4g} samples/s."
    return (
        f"{sweep.knee:,} is the knee: the smallest size within {near} of the best, "
        f"{best.samples_s:,.4g} samples/s at {best.size:,}. Beyond it more memory brings nothing."
    )


def _change_sentences(change: BatchSizeChange) -> Iterator[str]:
    if change.then == change.batch_size:
        yield "That is the present size: nothing else changes."
    elif change.accumulation is not None:
        yield (
            f"To train as with batches of {change.batch_size:,}: {change.accumulation} batches of {change.then:,} for "
            "each optimizer step, and the learning rate as it is."
        )
    if change.note:
        yield end_sentence(change.note)

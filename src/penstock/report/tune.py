"""`penstock tune`: the settings that were measured, and the one to use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from rich.table import Table

from penstock.core.format import format_duration
from penstock.report.text import table

if TYPE_CHECKING:
    from penstock.tuner.result import MeasuredSetting, Tuned

COLUMNS = ("setting", "samples/s", "× default", "model", "first batch", "runs", "")
NUMBERS = COLUMNS[1:-1]


def tuned_table(tuned: Tuned) -> Table:
    """Return the settings that were measured or computed."""
    when = "remembered" if tuned.remembered else f"measured in {format_duration(tuned.seconds)}"
    rows = [_row(setting, tuned.default_samples_s) for setting in tuned.measured]
    return table(f"settings, {when}", COLUMNS, rows, right=NUMBERS)


def tuned_lines(tuned: Tuned) -> Iterator[str]:
    """Yield the reasons for the chosen setting, and the arguments to copy into the script."""
    yield from (f"- {reason}." for reason in tuned.reasons)
    yield ""
    arguments = ", ".join(f"{name}={value!r}" for name, value in tuned.kwargs.items())
    yield f"DataLoader(…, {arguments})"


def tuned_document(tuned: Tuned) -> dict[str, Any]:
    """Return the result as plain values for JSON."""
    return {**msgspec.to_builtins(tuned.findings()), "remembered": tuned.remembered}


def _row(measured: MeasuredSetting, default_samples_s: float | None) -> tuple[str, ...]:
    rate, predicted, first_s = measured.samples_s, measured.predicted_samples_s, measured.first_s
    note = "; ".join(word for word in (measured.note, "computed" if measured.how == "computed" else "") if word)
    return (
        str(measured.setting),
        "–" if rate is None else f"{rate:,.0f}",
        "–" if rate is None or not default_samples_s else f"{rate / default_samples_s:.2f}",
        "–" if predicted is None else f"{predicted:,.0f}",
        "–" if first_s is None else format_duration(first_s),
        str(measured.runs),
        note,
    )

"""`penstock tune`: how many workers a DataLoader should have, measured on the user's own dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from penstock.cli import console
from penstock.cli.arguments import AsJson, made_by, need_torch
from penstock.core.format import format_duration
from penstock.core.plan import Profile
from penstock.errors import printable
from penstock.report.text import table

if TYPE_CHECKING:
    from penstock.tuner.result import MeasuredSetting, Tuned

COLUMNS = ("setting", "samples/s", "× default", "model", "first batch", "runs", "")
NUMBERS = COLUMNS[1:-1]


def tune(
    factory: Annotated[
        str,
        typer.Argument(metavar="MODULE:FUNCTION", help="Makes the dataset, or a DataLoader; called without arguments."),
    ],
    batch_size: Annotated[int | None, typer.Option(min=1, help="For a dataset; a DataLoader has its own.")] = None,
    step_ms: Annotated[
        float | None, typer.Option(min=0, metavar="MS", help="That the device is busy with a batch.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="That it may take.")] = 90.0,
    profile: Annotated[
        Profile, typer.Option(help="balanced: fewest workers within 3% of the best; speed: 0.5%; memory: 10%.")
    ] = "balanced",
    refresh: Annotated[bool, typer.Option("--refresh", help="Measure again, though findings are kept.")] = False,
    as_json: AsJson = False,
) -> None:
    """How many workers should this DataLoader have? Measures your dataset.

    FUNCTION returns a dataset, or a DataLoader of which everything but
    the number of workers, the prefetch and the order of delivery is kept.
    One worker is timed alone, a model says how many should be enough, and
    real loaders are run around that number. Without --step-ms loading
    alone is measured: as fast as it can be.

        penstock tune mypackage.data:make_dataset --batch-size 64

    Findings are kept per dataset and machine for a month. The module is
    looked for in the working directory too, and is run: trust it.

    Exit code: 0 tuned, 2 wrong usage, 3 it could not be measured.
    """
    need_torch("it is its DataLoader that is tuned")
    source = made_by(factory, "a dataset or a DataLoader")
    from penstock.tuner.tune import tune as tune_source

    with console.notices.status("measuring …"):
        found = tune_source(
            source,
            batch_size=batch_size,
            step_s=None if step_ms is None else step_ms / 1000,
            seconds=seconds,
            profile=profile,
            refresh=refresh,
        )
    if as_json:
        console.print_json({**msgspec.to_builtins(found.findings()), "remembered": found.remembered})
    else:
        _print(found)


def _print(found: Tuned) -> None:
    when = "remembered" if found.remembered else f"measured in {format_duration(found.seconds)}"
    rows = [_row(each, found.default_samples_s) for each in found.measured]
    console.out.print(table(f"settings, {when}", COLUMNS, rows, right=NUMBERS))
    for reason in found.reasons:
        console.out.print(f"- {printable(reason)}.", markup=False, highlight=False, soft_wrap=True)
    arguments = ", ".join(f"{name}={value!r}" for name, value in found.kwargs.items())
    console.out.print(f"\nDataLoader(…, {arguments})", markup=False, highlight=False, soft_wrap=True)


def _row(each: MeasuredSetting, default_samples_s: float | None) -> tuple[str, ...]:
    rate, expected, first_s = each.samples_s, each.predicted_samples_s, each.first_s
    note = "; ".join(word for word in (each.note, "computed" if each.how == "computed" else "") if word)
    return (
        str(each.setting),
        "–" if rate is None else f"{rate:,.0f}",
        "–" if rate is None or not default_samples_s else f"{rate / default_samples_s:.2f}",
        "–" if expected is None else f"{expected:,.0f}",
        "–" if first_s is None else format_duration(first_s),
        str(each.runs),
        note,
    )

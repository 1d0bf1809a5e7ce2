"""`penstock tune`: finds the number of workers for a DataLoader by measuring the user's own dataset."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import console
from penstock.cli.arguments import AsJson, Refresh, call_factory, need_torch
from penstock.core.plan import Profile
from penstock.report.tune import tuned_document, tuned_lines, tuned_table

RESUMED = "What was measured is lost: a second call measures again."


def tune(
    factory: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION", help="Returns the dataset, or a DataLoader; called without arguments."
        ),
    ],
    batch_size: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="For a dataset; a DataLoader has its own.")
    ] = None,
    step_ms: Annotated[
        float | None, typer.Option(min=0, metavar="MS", help="Time that the device takes for a batch.")
    ] = None,
    duration: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="Limit for the whole measurement.")] = 90.0,
    profile: Annotated[
        Profile, typer.Option(help="balanced: fewest workers within 3% of the best; speed: 0.5%; memory: 10%.")
    ] = "balanced",
    refresh: Refresh = False,
    as_json: AsJson = False,
) -> None:
    """Find how many workers a DataLoader should have on your dataset.

    FUNCTION returns a dataset, or a DataLoader of which everything but
    the number of workers, the prefetch and the order of delivery is kept.
    One worker is timed alone, a model predicts how many are enough, and
    real loaders are run around that number. Without --step-ms, loading
    alone is measured, as fast as it can be.

        penstock tune mypackage.data:make_dataset --batch-size 64

    Results are cached per dataset and machine for a month. The module is
    imported from the working directory too, and its code runs: trust it.

    Exit code: 0 tuned, 2 wrong usage, 3 it could not be measured.
    """
    need_torch("penstock tune measures its DataLoader")
    source = call_factory(factory, "a dataset or a DataLoader")
    from penstock.tuner.tune import tune as tune_source

    with console.timed("measuring", duration):
        tuned = tune_source(
            source,
            batch_size=batch_size,
            step_s=None if step_ms is None else step_ms / 1000,
            seconds=duration,
            profile=profile,
            refresh=refresh,
        )
    if as_json:
        console.print_json(tuned_document(tuned))
    else:
        console.out.print(tuned_table(tuned))
        for line in tuned_lines(tuned):
            console.print_line(line)

"""`penstock compare`: two recordings side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import console
from penstock.cli.arguments import AsJson
from penstock.recording.reader import load
from penstock.report.compare import compare as compare_recordings
from penstock.report.compare import comparison_document, comparison_text


def compare(
    before: Annotated[Path, typer.Argument(help="A recording.")],
    after: Annotated[Path, typer.Argument(help="Another one.")],
    as_json: AsJson = False,
) -> None:
    """Is the second run faster than the first? Compares two recordings.

        penstock compare before.jsonl after.jsonl

    Samples per second, the share of waiting, and each phase of the step,
    with an interval for every ratio; "inconclusive" is an answer.

    Exit code: 0 compared, 2 wrong usage, 3 a recording could not be read.
    """
    found = compare_recordings(load(before), load(after))
    if as_json:
        console.print_json(comparison_document(found))
    else:
        console.out.print(comparison_text(found))

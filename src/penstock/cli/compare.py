"""`penstock compare`: compares two recordings."""

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
    after: Annotated[Path, typer.Argument(help="Another recording.")],
    as_json: AsJson = False,
) -> None:
    """Compare two recordings: is the second run faster than the first?

        penstock compare before.jsonl after.jsonl

    Shows samples per second, the share of waiting, and each phase of the
    step, with an interval for every ratio; the answer may be
    "inconclusive".

    Exit code: 0 compared, 2 wrong usage, 3 a recording could not be read.
    """
    comparison = compare_recordings(load(before), load(after))
    if as_json:
        console.print_json(comparison_document(comparison))
    else:
        console.out.print(comparison_text(comparison))

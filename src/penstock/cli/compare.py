"""`penstock compare`: compares two recordings, or several runs of each; in CI it fails if the later ones are slower."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import console
from penstock.cli.arguments import AsJson, parse_share
from penstock.errors import SettingError
from penstock.recording.reader import load
from penstock.report.compare import compare as compare_recordings
from penstock.report.compare import comparison_document, comparison_text, gate

EXIT_CODES = {"passed": console.OK, "slower": console.FOUND, "inconclusive": console.UNDECIDED}


def compare(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="A recording, or a folder of several.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="Another one.")],
    fail_if_slower: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="End with 1 if AFTER is slower by this share, like 5%, or more."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two recordings: is the second run faster than the first?

        penstock compare before.jsonl after.jsonl

    Shows samples per second, the share of waiting, and each phase of the
    step, with an interval for every ratio; the answer may be
    "inconclusive". Of a folder, all recordings of the first rank are taken:
    runs of the same training, whose variation is then in the interval.

    In CI, five short runs of each make a gate:

        penstock compare main/ branch/ --fail-if-slower 5%

    It fails if AFTER is slower and a slowdown by that share is not
    excluded, and passes if it is excluded.

    Exit code: 0 compared, 2 wrong usage or nothing to read. With
    --fail-if-slower: 0 not slower by so much, 1 slower, 4 inconclusive.
    """
    share = None if fail_if_slower is None else parse_share(fail_if_slower, "--fail-if-slower")
    files = [_recordings(path) for path in (before, after)]
    first, second = ([load(file) for file in side] for side in files)
    comparison = compare_recordings(first, second, _names(before, after))
    result = None if share is None else gate(comparison, share)
    if as_json:
        document = {**comparison_document(comparison), "files": [list(map(str, side)) for side in files]}
        if result is not None:
            document |= {"gate": result.answer, "gate_sentence": result.sentence}
        console.print_json(document)
    else:
        console.out.print(comparison_text(comparison))
        if result is not None:
            console.print_line(result.sentence)
    raise typer.Exit(console.OK if result is None else EXIT_CODES[result.answer])


def _recordings(path: Path) -> Sequence[Path]:
    """Return the file itself, or the recordings of the first rank in a folder."""
    if not path.is_dir():
        return (path,)
    found = sorted(file for file in path.glob("*.jsonl*") if ".rank" not in file.name)
    if not found:
        raise SettingError(f"{path} has no recordings (*.jsonl)", advice="`penstock run -o FOLDER/1.jsonl` makes one")
    return found


def _names(before: Path, after: Path) -> tuple[str, str]:
    """Return the names of the files without the folders that both have in common."""
    if before.name != after.name:
        return before.name, after.name
    if before.absolute() == after.absolute():
        return str(before), str(after)
    common = os.path.commonpath([before.absolute(), after.absolute()])
    return os.path.relpath(before, common), os.path.relpath(after, common)

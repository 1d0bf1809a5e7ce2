"""`penstock diagnose`: why a run waited for data, from a recording or from a plain training log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from penstock.cli import console
from penstock.cli.arguments import AsJson
from penstock.core.finding import Diagnosis
from penstock.diagnose.ranks.verdict import diagnose_ranks
from penstock.diagnose.training_log.read import read_log
from penstock.diagnose.training_log.verdict import diagnose_log
from penstock.errors import SettingError
from penstock.recording.ranks import load_ranks
from penstock.recording.reader import Recording, is_recording
from penstock.report.diagnose import diagnosis_text
from penstock.report.markdown import render_markdown
from penstock.verify.history import prediction_error

EXIT_CODES = {"healthy": console.OK, "findings": console.FOUND, "undetermined": console.UNDECIDED}


def diagnose(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A recording (run.jsonl) or a training log.")],
    pattern: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            help="For logs of an unknown format: named groups step, time or time_ms, data or data_ms.",
        ),
    ] = None,
    num_workers: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="num_workers of the run, if a log does not contain it.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Batch size of the run, if a log does not contain it.")
    ] = None,
    output: Annotated[Literal["text", "md"], typer.Option("--format", help="How to print the diagnosis.")] = "text",
    as_json: AsJson = False,
) -> None:
    """Find where the time went, and why, in a recording of `penstock run`.

    Prints one sentence of verdict, the causes with the gain that removing
    each would give, the evidence, and the causes that were ruled out with
    the reason; and, if it cannot be decided, the experiment that would.

        penstock run -o run.jsonl train.py

        penstock diagnose run.jsonl

    It also reads a plain training log: lines of tqdm, timm, MMEngine, HF
    Trainer, Lightning, or of your own with --pattern. A log contains less
    than a recording; what it cannot decide is stated.

    Of a run of several ranks, name the recording of the first one: the
    others lie beside it. The rank that delays the others is named, and why.

    Exit code: 0 healthy, 1 findings, 2 wrong usage or nothing to read,
    4 undetermined.
    """
    recording, diagnosis = _diagnose(run, pattern, num_workers, batch_size)
    if as_json:
        console.print_json(diagnosis)
    elif output == "md":
        if recording is None:
            raise SettingError("a log has too little for a report", advice="Leave out --format, or record the run")
        console.print_document(render_markdown(recording, diagnosis))
    else:
        console.out.print(diagnosis_text(diagnosis, recording, width=console.out.width), soft_wrap=True)
    raise typer.Exit(EXIT_CODES[diagnosis.verdict])


def _diagnose(
    run: Path, pattern: str | None, num_workers: int | None, batch_size: int | None
) -> tuple[Recording | None, Diagnosis]:
    if pattern is None and is_recording(run):
        if num_workers is not None or batch_size is not None:
            raise SettingError(
                "a recording contains its own settings", advice="Leave out --num-workers and --batch-size"
            )
        return diagnose_ranks(load_ranks(run), prediction_error())
    return None, diagnose_log(read_log(run, pattern), num_workers, batch_size)

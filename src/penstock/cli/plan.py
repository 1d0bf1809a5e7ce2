"""`penstock plan`: what to change in a training, why, and what it should give."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from penstock.cli import console
from penstock.cli.arguments import AsJson
from penstock.core.plan import Plan, Profile
from penstock.diagnose.verdict import diagnose, most_waiting
from penstock.errors import RecordingError, SettingError, printable
from penstock.plan.document import plan_document, save_plan
from penstock.plan.fromrecording import plan_from_recording
from penstock.recording.load import Recording
from penstock.recording.ranks import load_ranks
from penstock.report.plan import plan_markdown, plan_text

NOTHING, CHANGES, UNDETERMINED = 0, 1, 3


def plan(
    run: Annotated[Path, typer.Argument(metavar="RECORDING", help="Of `penstock run` or `penstock.watch`.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the plan there, as YAML.")
    ] = None,
    profile: Annotated[
        Profile,
        typer.Option(help="speed: the last percent too; memory: as little of it as does; balanced: between."),
    ] = "balanced",
    form: Annotated[Literal["text", "md"], typer.Option("--format", help="How it is printed.")] = "text",
    as_json: AsJson = False,
) -> None:
    """What should be changed, why, and what would it give?

    Reads a recording and asks the model of the run what other settings
    would do: those of torch's DataLoader, of penstock.Loader, of the data
    on disk and of the step. Each change comes with its reason and with what
    it should gain alone; gains do not add up. Where no model can say a gain,
    it says "not known".

        penstock run -o run.jsonl train.py

        penstock plan run.jsonl -o plan.yaml

        penstock verify plan.yaml -- python train.py

    The file is for reading and editing: take out what you do not want, then
    let `penstock verify` measure the rest. It is bound to the machine and the
    data of the recording: elsewhere it is explained, not just applied.

    Of several ranks the one that waited most is planned for.

    Exit code: 0 nothing to change (at most things to try in a step that has
    its data in time), 1 changes are proposed, 2 wrong usage or nothing to
    read, 3 the run waits, or is too short, and no change is known for it.
    """
    if output is not None and output.exists() and run.exists() and output.samefile(run):
        raise SettingError(f"{output} is the recording itself", advice="Name another file with -o")
    try:
        recording = most_waiting(load_ranks(run))
    except RecordingError as error:
        typer.echo(f"penstock: {error}", err=True)
        raise typer.Exit(console.USAGE) from error
    found = plan_from_recording(recording, profile=profile)
    if as_json:
        console.print_json(plan_document(found))
    elif form == "md":
        typer.echo(plan_markdown(found), nl=False)
    else:
        console.out.print(plan_text(found))
    if output is not None:
        save_plan(found, output)
        console.notices.print(f"{printable(str(output))} written", highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(_exit_code(found, recording))


def _exit_code(found: Plan, recording: Recording) -> int:
    """Changes without a gain count where the diagnosis has a finding: else they are only things to try."""
    if any(change.gain is not None for change in found.changes):
        return CHANGES
    verdict = diagnose(recording).verdict
    if verdict == "healthy":
        return NOTHING
    return CHANGES if found.changes and verdict == "findings" else UNDETERMINED

"""`penstock verify`: runs a training with and without a plan in turn, and measures the difference."""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import console
from penstock.cli.arguments import AsJson
from penstock.core.format import format_duration, format_time_left
from penstock.core.plan import Plan
from penstock.errors import RecordingError, SettingError
from penstock.plan.document import load_plan
from penstock.plan.fingerprint import differences
from penstock.report.plan import SOURCES
from penstock.report.verify import (
    all_cold,
    history_document,
    history_text,
    verification_document,
    verification_text,
)
from penstock.verify import history as verification_history
from penstock.verify.command import parse_command
from penstock.verify.judge import Judgement, judge, predicted_gain
from penstock.verify.measures import RunMeasure
from penstock.verify.trials import ScheduledRun, Trial, TrialRequest, min_steps, run_trials, schedule_runs

EXIT_CODES = {"better": console.OK, "worse": console.FOUND, "inconclusive": console.UNDECIDED}
RESUMED = "A second call starts with the first run again."


def verify(
    plan: Annotated[Path | None, typer.Argument(metavar="PLAN", help="From `penstock plan -o plan.yaml`.")] = None,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND",
            help="The training, as you run it: python SCRIPT [ARGS].",
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, metavar="N", help="Runs before, and as many after.")] = 3,
    steps: Annotated[
        int | None,
        typer.Option(min=2, metavar="N", help="End each run after this many steps.  [default: the whole script]"),
    ] = None,
    cold: Annotated[bool, typer.Option("--cold/--warm", help="With an empty page cache, or a filled one.")] = False,
    drop: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True, metavar="PATH", help="With --cold: the data; may be repeated.  [default: what workers read]"
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FOLDER", help="Keep recordings, and what the script prints, there."),
    ] = None,
    history: Annotated[bool, typer.Option("--history", help="Earlier verifications, and the model's error.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure whether the training is faster with the plan.

        penstock verify plan.yaml --steps 300 -- python train.py --epochs 1

    The script is run unchanged, first as it is, then with the plan's
    settings in every torch DataLoader it makes, in turn: before, after,
    before, after, three of each. An additional first run warms the page
    cache and is not counted. The first steps of each run are left out. The
    answer comes with a 95% interval over rounds of the workers and over
    runs, beside what the plan predicted; it may be "inconclusive".

    With --steps, a run is ended as by Ctrl-C (SIGINT) once a loader has had
    that many steps; 15 s later, if it still runs, by SIGTERM, then by
    SIGKILL. Whatever else the script does (checkpoints, logs) it does in
    every run. It has no input, and what it prints goes to a file: see -o.

    With --cold, the cached pages of the data are dropped before each run:
    of --drop PATH, else of the folders from which the workers of the first
    run read. If that fails, the result is marked warm.

        penstock verify --history

    It first prints what it will run, and after the first run for how long. If
    that run shows that the script has the plan's settings already, it stops.

    Exit code: 0 better, 1 worse, 2 wrong usage, 3 a run failed,
    4 inconclusive.
    """
    if history:
        if plan is not None or command:
            raise SettingError("--history runs nothing", advice="Leave out the plan and the command")
        _print_history(as_json)
        return
    if plan is None:
        raise SettingError("there is no plan to verify", advice="`penstock plan RECORDING -o plan.yaml` makes one")
    if drop and not cold:
        raise SettingError("--drop is for cold runs", advice="Add --cold, or leave it out")
    loaded = _read_plan(plan)
    script = parse_command(command or ())
    _check_steps(steps, loaded)
    with _folder(output) as folder:
        request = TrialRequest(
            script=script,
            dataloader=loaded.dataloader,
            folder=folder,
            repeats=repeats,
            steps=steps,
            cold=cold,
            paths=tuple(drop or ()),
        )
        gain, note = _predicted_gain(loaded)
        try:
            trials = _run(request, command or ())
            judgement = judge(_measures(trials, "before"), _measures(trials, "after"), gain)
        except RecordingError as error:  # of a run that verify itself has started
            console.fail(error)
    _add_to_history(verification_history.make_entry(loaded, judgement, command or (), cold=all_cold(trials)))
    _print(judgement, trials, (note,) if note else (), as_json)
    raise typer.Exit(EXIT_CODES[judgement.answer])


def _read_plan(path: Path) -> Plan:
    """Read the plan; refuse one without changes to apply, and report if it was made for another machine."""
    plan = load_plan(path)
    if not plan.dataloader:
        raise SettingError(
            f"{path} changes nothing of a torch DataLoader",
            advice="Make its other changes yourself, then use penstock compare",
        )
    for sentence in differences(plan):
        console.print_notice(f"{sentence}.")
    return plan


def _predicted_gain(plan: Plan) -> tuple[float | None, str | None]:
    """Return the plan's prediction for this script, and a note if there is none."""
    if plan.source != "recording":
        return (
            None,
            f"The plan was made from {SOURCES[plan.source]}: over this script's own settings it predicts nothing.",
        )
    return predicted_gain(plan)


@contextmanager
def _folder(output: Path | None) -> Iterator[Path]:
    """Yield the user's folder, which is kept, or a temporary one."""
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        yield output
        return
    with tempfile.TemporaryDirectory(prefix="penstock-verify-") as folder:
        yield Path(folder)


def _check_steps(steps: int | None, plan: Plan) -> None:
    """Refuse runs that would be too short to judge."""
    least = min_steps(plan.dataloader)
    if steps is not None and steps < least:
        raise SettingError(
            f"runs of {steps} steps cannot be judged with the plan's workers and what they prefetch",
            advice=f"Give --steps {least} or more",
        )


def _run(request: TrialRequest, command: Sequence[str]) -> list[Trial]:
    """Announce the runs and how long they take, and do them."""
    order = schedule_runs(request)
    length = f"{request.steps} steps each" if request.steps else "the whole script each; --steps makes them shorter"
    settings = ", ".join(f"{name}={value}" for name, value in request.dataloader.items())
    console.print_notice(f"{len(order)} runs of {shlex.join(command)}, {length}")
    console.print_notice(f"with the script's own settings and with {settings}, {request.repeats} times each, in turns")
    if len(order) > 2 * request.repeats:
        console.print_notice("the first run warms the page cache, is not counted, and shows how long the others take")
    done, start_s = iter(range(len(order))), time.monotonic()
    with console.progress("running", len(order)) as bar:

        def begin(turn: ScheduledRun) -> None:
            count = next(done)
            bar.update(bar.task_ids[0], completed=count, description=f"running: {turn}")
            if count == 1:
                run_s = time.monotonic() - start_s
                left_s = run_s * (len(order) - 1)
                console.print_notice(f"a run took {format_duration(run_s)}: {format_time_left(left_s)}")

        return run_trials(request, begin)


def _measures(trials: Sequence[Trial], settings: str) -> list[RunMeasure]:
    return [trial.measure for trial in trials if trial.run.settings == settings]


def _add_to_history(entry: verification_history.VerificationEntry) -> None:
    """Store the result; if that fails, the result is still printed."""
    try:
        verification_history.append_entry(entry)
    except OSError as error:  # StorageError is one
        console.print_notice(f"not added to the history: {error}")


def _print(judgement: Judgement, trials: Sequence[Trial], notes: Sequence[str], as_json: bool) -> None:
    if as_json:
        console.print_json(verification_document(judgement, trials, notes))
    else:
        console.out.print(verification_text(judgement, trials, notes))


def _print_history(as_json: bool) -> None:
    history = verification_history.read_history()
    if as_json:
        console.print_json(history_document(history))
    else:
        console.out.print(history_text(history))

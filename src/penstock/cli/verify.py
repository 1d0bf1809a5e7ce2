"""`penstock verify`: does a plan keep its promise? Before and after, measured in turn."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import console
from penstock.cli.arguments import AsJson
from penstock.core.plan import Plan
from penstock.errors import SettingError, printable
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
from penstock.verify import history as kept
from penstock.verify.command import parse
from penstock.verify.judge import Judgement, judge, predicted
from penstock.verify.measures import RunMeasure
from penstock.verify.trials import Trial, TrialRequest, TrialTurn, least_steps, run_trials, trial_turns

CODES = {"better": 0, "worse": 1, "inconclusive": 3}
INTERRUPTED = 130


def verify(
    plan: Annotated[Path | None, typer.Argument(metavar="PLAN", help="From `penstock plan -o plan.yaml`.")] = None,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- python SCRIPT [ARGS]...", help="The training, as you run it.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs before, and as many after.")] = 3,
    steps: Annotated[
        int | None, typer.Option(min=2, help="End each run after so many steps.  [default: the whole script]")
    ] = None,
    cold: Annotated[bool, typer.Option("--cold/--warm", help="With an empty page cache, or a filled one.")] = False,
    drop: Annotated[
        list[Path] | None,
        typer.Option(exists=True, metavar="PATH", help="With --cold: the data; may be repeated.  [default: as seen]"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FOLDER", help="Keep recordings, and what the script prints, there."),
    ] = None,
    history: Annotated[bool, typer.Option("--history", help="Earlier verifications, and the model's error.")] = False,
    as_json: AsJson = False,
) -> None:
    """Is the training faster with the plan? Runs it both ways, and measures.

        penstock verify plan.yaml --steps 300 -- python train.py --epochs 1

    The script is run unchanged, first as it is, then with the plan's
    settings in every torch DataLoader it makes, in turn: before, after,
    before, after, three of each. One run more goes ahead, to warm the page
    cache, and is not counted. Of each run the first steps are left out. The
    answer comes with a 95% interval over rounds of the workers and over
    runs, beside what the plan predicted; "inconclusive" is an answer.

    With --steps a run is ended as by Ctrl-C (SIGINT) once a loader has had
    so many steps; 15 s later, if it still runs, by SIGTERM, then by
    SIGKILL. Whatever else the script does (checkpoints, logs) it does in
    every run. It has no input, and what it prints goes to a file: see -o.

    With --cold the cached pages of the data are dropped before each run:
    of --drop PATH, else of the folders from which the workers of the first
    run were seen to read. Where that fails the result is marked warm.

        penstock verify --history

    Exit code: 0 better, 1 worse, 2 wrong usage, 3 inconclusive or failed.
    """
    if history:
        if plan is not None or command:
            raise SettingError("--history runs nothing", advice="Leave out the plan and the command")
        _tell_history(as_json)
        return
    if plan is None:
        raise SettingError("there is no plan to verify", advice="`penstock plan RECORDING -o plan.yaml` makes one")
    if drop and not cold:
        raise SettingError("--drop is for cold runs", advice="Add --cold, or leave it out")
    script = parse(command or ())
    what = _read(plan)
    _check(steps, what)
    with _folder(output) as folder:
        ask = TrialRequest(
            script=script,
            dataloader=what.dataloader,
            folder=folder,
            repeats=repeats,
            steps=steps,
            cold=cold,
            paths=tuple(drop or ()),
        )
        trials = _run(ask)
    gain, note = _predicted(what)
    judgement = judge(_sides(trials, "before"), _sides(trials, "after"), gain)
    _keep(kept.entry_of(what, judgement, command or (), cold=all_cold(trials)))
    _tell(judgement, trials, (note,) if note else (), as_json)
    raise typer.Exit(CODES[judgement.answer])


def _read(path: Path) -> Plan:
    """Refused where there is nothing to apply; told where it is for another machine."""
    plan = load_plan(path)
    if not plan.dataloader:
        raise SettingError(
            f"{path} changes nothing of a torch DataLoader", advice="Other changes are yours to make: penstock compare"
        )
    for sentence in differences(plan):
        _notice(f"{sentence}.")
    return plan


def _predicted(plan: Plan) -> tuple[float | None, str | None]:
    if plan.source != "recording":
        return (
            None,
            f"The plan was made from {SOURCES[plan.source]}: over this script's own settings it predicts nothing.",
        )
    return predicted(plan)


@contextmanager
def _folder(output: Path | None) -> Iterator[Path]:
    """The user's, which stays, or one of our own, which does not."""
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        yield output
        return
    with tempfile.TemporaryDirectory(prefix="penstock-verify-") as folder:
        yield Path(folder)


def _check(steps: int | None, plan: Plan) -> None:
    """Before runs are made that can tell nothing."""
    least = least_steps(plan.dataloader)
    if steps is not None and steps < least:
        raise SettingError(
            f"runs of {steps} steps cannot be judged with the plan's workers and what they prefetch",
            advice=f"Give --steps {least} or more",
        )


def _run(ask: TrialRequest) -> list[Trial]:
    order = trial_turns(ask)
    bound = f"{ask.steps} steps each" if ask.steps else "the whole script each; --steps makes them shorter"
    _notice(f"{len(order)} runs, {bound}")
    done = iter(range(len(order)))
    with console.progress("running", len(order)) as bar:

        def begin(turn: TrialTurn) -> None:
            bar.update(bar.task_ids[0], completed=next(done), description=f"running: {turn}")

        try:
            return run_trials(ask, begin)
        except KeyboardInterrupt:
            _notice("interrupted")
            raise typer.Exit(INTERRUPTED) from None


def _sides(trials: Sequence[Trial], settings: str) -> list[RunMeasure]:
    return [trial.side for trial in trials if trial.turn.settings == settings]


def _keep(entry: kept.VerificationEntry) -> None:
    """A result that cannot be kept is still a result."""
    try:
        kept.append(entry)
    except OSError as error:  # StorageError is one
        _notice(f"not added to the history: {error}")


def _tell(judgement: Judgement, trials: Sequence[Trial], notes: Sequence[str], as_json: bool) -> None:
    if as_json:
        console.print_json(verification_document(judgement, trials, notes))
    else:
        console.out.print(verification_text(judgement, trials, notes))


def _tell_history(as_json: bool) -> None:
    found = kept.read()
    if as_json:
        console.print_json(history_document(found))
    else:
        console.out.print(history_text(found))


def _notice(text: str) -> None:
    console.notices.print(printable(text), markup=False, highlight=False, soft_wrap=True)

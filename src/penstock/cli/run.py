"""`penstock run`: runs an unchanged training script and diagnoses where its time went."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from penstock.cli import console
from penstock.errors import SettingError, printable
from penstock.watcher.machine.storage_recheck import BUDGET_S, add_storage_recheck
from penstock.watcher.rank_files import has_end_marker
from penstock.watcher.script.child_process import exit_like_child
from penstock.watcher.script.runner import Script, ScriptResult, TrialOptions, run_script

CONTEXT = {"allow_interspersed_args": False}
"""Options after the script's name belong to the script."""
PROBE_S = 8.0
PROBE_NOTICE = (
    "this is a probe of the step, not a training: after some steps the script gets one batch over and over, "
    "and is then ended as by Ctrl-C. Its weights are worthless: keep nothing that it saves"
)


def run(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python file; with -m, a module.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="The arguments of the script.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="The recording.  [default: penstock-DATE-TIME.jsonl]"),
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as in python -m.")] = False,
    live: Annotated[bool, typer.Option("--live/--no-live", help="Print lines while it runs, on a terminal.")] = True,
    slow: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="A longer wait is a slow batch.  [default: from the run itself]"),
    ] = None,
    recheck: Annotated[
        bool,
        typer.Option(
            "--recheck-storage/--no-recheck-storage", help="If workers waited for bytes, read for 2 s afterwards."
        ),
    ] = True,
    diagnosed: Annotated[bool, typer.Option("--diagnose/--no-diagnose", help="Print the verdict at the end.")] = True,
    probe: Annotated[
        Literal["compute"] | None,
        typer.Option(
            metavar="compute",
            help="No training: time the step on one batch, alone and beside busy processes, then end.",
        ),
    ] = None,
    duration: Annotated[
        float,
        typer.Option(min=0.1, max=30, metavar="SECONDS", help="With --probe: duration of each measurement."),
    ] = PROBE_S,
) -> None:
    """Run a training script unchanged, then report where its time went.

    Write "penstock run" instead of "python". Every torch DataLoader is
    watched with its workers, and the phases of each step: forward,
    backward, optimizer, copies to the GPU, waits for it, checkpoints, logs,
    garbage collection. The script behaves as before: its output, its
    signals, its exit code. Penstock prints to stderr, after it.

    \b
        penstock run train.py --epochs 1
        penstock run -o run.jsonl -m package.train --epochs 1
        penstock run -m torch.distributed.run --nproc-per-node 2 train.py

    Each rank has a recording of its own: run.jsonl, run.rank1.jsonl, …
    Read it again with "penstock diagnose" or "penstock report".

        penstock run --probe compute train.py

    How fast would it be if data cost nothing? After some steps, every
    loader that the script trains on returns one batch over and over; the
    step is timed alone, then beside as many busy processes as the loader
    has workers, and the script is ended as by Ctrl-C. Keep nothing that it
    saves.

    Exit code: the script's own, always; 2 if there is nothing to run. Of a
    probe: 0 measured, 3 not; the script's own if it failed before.
    """
    record = output or Path(time.strftime("penstock-%Y%m%d-%H%M%S.jsonl"))
    _check(script, module, record, slow)
    command = Script((script, *(arguments or ())), module)
    if probe is not None:
        _probe(command, record, duration)
    outcome = run_script(command, record, live=live, slow_s=slow)
    try:
        _report(outcome, recheck, diagnosed)
    finally:
        exit_like_child(outcome.code)


def _check(script: str, module: bool, record: Path, slow: float | None) -> None:
    """Refuse wrong options before the script runs for hours."""
    if slow is not None and not slow > 0:
        raise SettingError(f"--slow {slow:g} is not a positive number of seconds")
    if not module and not os.path.exists(script):
        raise SettingError(f"there is no script {script}", advice="With -m, name a module")
    if record.is_dir() or not os.access(record if record.exists() else record.parent, os.W_OK):
        raise SettingError(f"cannot record to {record}", advice="Name a file in a writable folder with -o")


def _report(outcome: ScriptResult, recheck: bool, diagnosed: bool) -> None:
    _print_end(outcome)
    if recheck:
        _recheck_storage(outcome.recordings)
    if diagnosed and outcome.recordings:
        _diagnose(outcome.recordings[0])


def _print_end(outcome: ScriptResult) -> None:
    if outcome.code < 0 and not outcome.stopped:
        console.print_error(f"the script was killed by {_signal_name(-outcome.code)}")
    names = ", ".join(printable(os.path.relpath(path)) for path in outcome.recordings)
    cut = outcome.code >= 0 and not all(has_end_marker(path) for path in outcome.recordings)
    end = ", which ends before the script did" if cut else ""
    console.print_error(f"recorded to {names}{end}" if names else "nothing was recorded")


def _signal_name(number: int) -> str:
    """Return a signal's name, or its number: most real-time signals have no name."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _recheck_storage(recordings: Sequence[Path]) -> None:
    """Read for two seconds on each rank that waited for bytes; an error only leaves the storage undetermined."""
    for path in recordings:
        try:
            with console.timed("reading again from the files that the workers read", BUDGET_S):
                add_storage_recheck(path)
        except Exception as error:
            console.print_error(f"the storage was not checked: {printable(str(error))}")


def _diagnose(path: Path) -> None:
    """Print the verdict; an error here must not change the script's exit code."""
    try:
        from penstock.diagnose.ranks.verdict import diagnose_ranks
        from penstock.recording.ranks import load_ranks
        from penstock.report.diagnose import diagnosis_text
        from penstock.verify.history import prediction_error

        recording, diagnosis = diagnose_ranks(load_ranks(path), prediction_error())
        console.notices.print(diagnosis_text(diagnosis, recording, width=console.notices.width), soft_wrap=True)
    except Exception as error:
        console.print_error(f"no verdict: {type(error).__name__}: {printable(str(error))}")


def _probe(script: Script, record: Path, seconds: float) -> NoReturn:
    """Probe the script's step, print the result and exit; the script itself does not reach its end."""
    from penstock.probe.results import ScriptProbe
    from penstock.probe.step import read_script_probe
    from penstock.recording.reader import load
    from penstock.report.probe import script_probe_text

    console.print_error(PROBE_NOTICE)
    outcome = run_script(script, record, live=False, trial=TrialOptions(probe_s=seconds))
    _print_end(outcome)
    found = read_script_probe(load(outcome.recordings[0])) if outcome.recordings else ScriptProbe()
    console.notices.print(script_probe_text(found))
    if found.step is not None:
        raise typer.Exit(console.OK)
    if outcome.code and not outcome.stopped:
        exit_like_child(outcome.code)
    raise typer.Exit(console.FAILED)

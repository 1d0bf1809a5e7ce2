"""`penstock run`: any training script, unchanged, and where its time went."""

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
from penstock.watcher.machine.storage_recheck import add_storage_recheck
from penstock.watcher.script.child_process import exit_like_child
from penstock.watcher.script.runner import Script, ScriptResult, TrialOptions, run_script

CONTEXT = {"allow_interspersed_args": False}
"""What follows the script is the script's."""
PROBE_S = 8.0
BEFORE_PROBE = (
    "penstock: this is a probe of the step, not a training: after some steps the script gets one batch over and over, "
    "and is then ended as by Ctrl-C. Its weights are worthless: keep nothing that it saves"
)


def run(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python file; with -m, a module.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="The script's own.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="The recording.  [default: penstock-DATE-TIME.jsonl]"),
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as in python -m.")] = False,
    live: Annotated[bool, typer.Option("--live/--no-live", help="Lines while it runs, on a terminal.")] = True,
    slow: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="Waiting longer is a slow batch.  [default: by the run itself]"),
    ] = None,
    look: Annotated[
        bool, typer.Option("--look/--no-look", help="If workers waited for bytes, 2 s of reading afterwards.")
    ] = True,
    diagnosed: Annotated[bool, typer.Option("--diagnose/--no-diagnose", help="The verdict, at the end.")] = True,
    probe: Annotated[
        Literal["compute"] | None,
        typer.Option(help="No training: the step on one batch over and over, alone and beside a load; then it ends."),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=30, help="With --probe: for each of its measurements.")
    ] = PROBE_S,
) -> None:
    """Run a training script as it is; then say where its time went, and why.

    Put "penstock run" where "python" stood. Every torch DataLoader is
    watched with its workers, and the phases of each step: forward,
    backward, optimizer, copies to the GPU, waits for it, checkpoints, logs,
    garbage collection. The script behaves as before: its output, its
    signals, its exit code. Ours goes to stderr, after it.

    \b
        penstock run train.py --epochs 1
        penstock run -o run.jsonl -m package.train --epochs 1
        penstock run -m torch.distributed.run --nproc-per-node 2 train.py

    Each rank has a recording of its own: run.jsonl, run.rank1.jsonl, …
    Read it again with "penstock diagnose" or "penstock report".

        penstock run --probe compute train.py

    How fast would it be if data cost nothing? After some steps every loader
    that it trains on gives one batch over and over; the step is timed alone,
    then beside as many busy processes as the loader has workers, and the
    script is ended as by Ctrl-C. Keep nothing that it saves.

    Exit code: the script's own, always; 2 if there is nothing to run. Of a
    probe: 0 measured, 3 not; the script's own if it failed before.
    """
    record = output or Path(time.strftime("penstock-%Y%m%d-%H%M%S.jsonl"))
    _check(script, module, record, slow)
    what = Script((script, *(arguments or ())), module)
    if probe is not None:
        _probe(what, record, seconds)
    outcome = run_script(what, record, live=live, slow_s=slow)
    try:
        _tell(outcome, look, diagnosed)
    finally:
        exit_like_child(outcome.code)


def _check(script: str, module: bool, record: Path, slow: float | None) -> None:
    """Before the script runs for hours."""
    if slow is not None and not slow > 0:
        raise SettingError(f"--slow {slow:g}: it takes a positive number of seconds to be slow")
    if not module and not os.path.exists(script):
        raise SettingError(f"there is no script {script}", advice="With -m, name a module")
    if record.is_dir() or not os.access(record if record.exists() else record.parent, os.W_OK):
        raise SettingError(
            f"cannot record to {record}", advice="Name a file in a folder that may be written to with -o"
        )


def _tell(outcome: ScriptResult, look: bool, diagnosed: bool) -> None:
    _tell_end(outcome)
    if look:
        _look_at_storage(outcome.recordings)
    if diagnosed and outcome.recordings:
        _diagnose(outcome.recordings[0])


def _tell_end(outcome: ScriptResult) -> None:
    if outcome.code < 0 and not outcome.stopped:
        typer.echo(f"penstock: the script was killed by {_signal_name(-outcome.code)}", err=True)
    names = ", ".join(printable(os.path.relpath(path)) for path in outcome.recordings)
    typer.echo(f"penstock: recorded to {names}" if names else "penstock: nothing was recorded", err=True)


def _signal_name(number: int) -> str:
    """Most of the real-time ones have none."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _look_at_storage(recordings: Sequence[Path]) -> None:
    """Two seconds for each rank that waited for bytes; what goes wrong leaves a question open, no more."""
    for path in recordings:
        try:
            with console.notices.status("reading once more from where the workers read …"):
                add_storage_recheck(path)
        except Exception as error:
            typer.echo(f"penstock: the storage was not looked at: {printable(str(error))}", err=True)


def _diagnose(path: Path) -> None:
    """What goes wrong in here must not become the script's failure."""
    try:
        from penstock.diagnose.ranks.verdict import diagnose_ranks
        from penstock.recording.ranks import load_ranks
        from penstock.report.diagnosis import diagnosis_text

        recording, diagnosis = diagnose_ranks(load_ranks(path))
        console.notices.print(diagnosis_text(diagnosis, recording), soft_wrap=True)
    except Exception as error:
        typer.echo(f"penstock: no verdict: {type(error).__name__}: {printable(str(error))}", err=True)


def _probe(script: Script, record: Path, seconds: float) -> NoReturn:
    """The script, its step measured, and an end of our own: it did not come to its own."""
    from penstock.probe.results import ScriptProbe
    from penstock.probe.step import read_script_probe
    from penstock.recording.reader import load
    from penstock.report.probes import script_probe_text

    typer.echo(BEFORE_PROBE, err=True)
    outcome = run_script(script, record, live=False, trial=TrialOptions(probe_s=seconds))
    _tell_end(outcome)
    found = read_script_probe(load(outcome.recordings[0])) if outcome.recordings else ScriptProbe()
    console.notices.print(script_probe_text(found))
    if found.step is not None:
        raise typer.Exit(console.OK)
    if outcome.code and not outcome.stopped:
        exit_like_child(outcome.code)
    raise typer.Exit(console.FAILED)

"""Runs a script as `python script …` would, and records every process of it that trains.

The script gets an interpreter of its own, which loads Penstock through a `sitecustomize` on PYTHONPATH; that only waits
for torch (autostart.py). Running the script inside our own interpreter would be simpler, but this gives exactly
Python's own `__main__`, spawned workers that import the script again, tracebacks, signals, `os._exit`, `exec` and
crashes. It also reaches the ranks that torchrun or torch.multiprocessing start, and this process survives to give the
verdict when the script is killed. Interpreters that the script starts with -I, -E or -S are not recorded.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock import __version__
from penstock.core.text import redact_secrets
from penstock.errors import RecordingError
from penstock.recording.format import RunLine
from penstock.recording.writer import Recorder
from penstock.watcher.machine.facts import machine_facts
from penstock.watcher.rank_files import claims, write_end_marker
from penstock.watcher.script.autostart import COMPUTE_PROBE, RUN_VARIABLE, STOP_FILE
from penstock.watcher.script.child_process import run_child

log = logging.getLogger("penstock")

_SITECUSTOMIZE = """\
import sys

sys.path[:] = [path for path in sys.path if path != {folder!r}]
ours = sys.modules.pop("sitecustomize")
try:
    import sitecustomize
except ImportError as error:
    if error.name != "sitecustomize":
        raise
finally:
    sys.modules.setdefault("sitecustomize", ours)
try:
    from penstock.watcher.script.autostart import install_import_hook
except ImportError:
    pass
else:
    install_import_hook()
"""
"""The sitecustomize of every interpreter of the run: it runs the one that it hides, then installs the import hook.

An interpreter of another environment may not have Penstock, and then runs without it."""


@dataclass(frozen=True, slots=True)
class ScriptResult:
    """How a run of a script ended, and its recordings."""

    code: int
    """The script's exit code; minus the signal's number if a signal killed it."""
    recordings: tuple[Path, ...]
    """The recordings, that of the first rank first."""
    stopped: bool = False
    """Whether it had the steps of `TrialOptions.steps`, or its probe was complete. It was stopped if it still ran."""
    interrupted: bool = False
    """Whether Ctrl-C was pressed while it ran."""

    @property
    def ended_by_interrupt(self) -> bool:
        """Return whether Ctrl-C ended it."""
        return self.code in (-signal.SIGINT, 128 + signal.SIGINT) or (self.interrupted and self.code != 0)


@dataclass(frozen=True, slots=True)
class Script:
    """A script to run: a file and its arguments; with `module`, the arguments of `python -m`."""

    argv: tuple[str, ...]
    module: bool = False

    @property
    def command(self) -> list[str]:
        """Return the command line, with the interpreter of this process."""
        return [sys.executable, *(["-m"] if self.module else []), *self.argv]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOptions:
    """Options for a short trial of a script. With the defaults, the script runs as it would without Penstock."""

    dataloader: Mapping[str, Any] = field(default_factory=dict)
    """Settings that replace the script's own in all its DataLoaders: see apply_plan.py."""
    steps: int | None = None
    """Stop the script after this number of steps of one loader, by `child_process.STOP_SIGNALS`: Ctrl-C first."""
    output: Path | None = None
    """A file for its stdout and stderr; the script then has no input. None: those of this process."""
    probe_s: float | None = None
    """Probe its step, with so many seconds per measurement, then stop it: see step_probe/. The recording is marked."""


def run_script(
    script: Script, record: Path, *, live: bool = True, slow_s: float | None = None, trial: TrialOptions | None = None
) -> ScriptResult:
    """Run a script until it ends. A script that never trains leaves a recording too, without steps."""
    trial = trial or TrialOptions()
    record = record.absolute()
    began = time.time()
    with tempfile.TemporaryDirectory(prefix="penstock-run-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text(_SITECUSTOMIZE.format(folder=name))
        job: dict[str, object] = {"folder": name, "record": str(record), "live": live, "slow_s": slow_s}
        job |= {"dataloader": dict(trial.dataloader), "steps": trial.steps, "probe_s": trial.probe_s}
        with ExitStack() as stack:
            output = stack.enter_context(open(trial.output, "wb")) if trial.output is not None else None
            bounded = trial.steps is not None or trial.probe_s is not None
            should_stop = (folder / STOP_FILE).exists if bounded else None
            pid, code, interrupted = run_child(script.command, _environment(name, job), output, should_stop)
        claimed, stopped = claims(folder), (folder / STOP_FILE).exists()
    if not claimed:
        claimed = [(pid, record)]
        try:
            _record_without_training(record, script, began, pid, trial)
        except RecordingError as error:  # the script has run; a missing recording is no reason to fail
            log.warning("%s", error)
    own = [path for claiming_pid, path in claimed if claiming_pid == pid]
    if own:
        write_end_marker(own[-1], code)
    recordings = {path: None for _, path in claimed if path.is_file()}
    return ScriptResult(code, tuple(sorted(recordings, key=lambda path: path != record)), stopped, interrupted)


def _environment(folder: str, job: Mapping[str, object]) -> dict[str, str]:
    before = os.environ.get("PYTHONPATH")
    paths = folder if not before else f"{folder}{os.pathsep}{before}"
    return {**os.environ, "PYTHONPATH": paths, RUN_VARIABLE: json.dumps(job)}


def _record_without_training(record: Path, script: Script, started: float, pid: int, trial: TrialOptions) -> None:
    run = RunLine(
        penstock=__version__,
        began_unix_s=started,
        command=tuple(map(redact_secrets, script.argv)),
        pid=pid,
        machine=machine_facts(),
        probe="" if trial.probe_s is None else COMPUTE_PROBE,
    )
    Recorder(record, run).close()

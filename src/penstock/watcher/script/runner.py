"""A script, run as `python script …` would run it, with every process of it that trains recorded.

The script gets an interpreter of its own and finds us in it through PYTHONPATH: a `sitecustomize` that does nothing but
wait for torch (`autostart`). Running it inside our own interpreter would look simpler and be less true: `__main__`,
spawned workers that import it again, tracebacks, signals, `os._exit`, `exec` and a crash are python's own this way; the
ranks that torchrun or torch.multiprocessing start are watched by the same way; and somebody is left to give the verdict
when the script was killed. Interpreters that it starts with -I, -E or -S are not followed.
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
from penstock.watcher.script import child_process as child
from penstock.watcher.script.autostart import COMPUTE_PROBE, RUN_VARIABLE, STOP_FILE

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
"""For every interpreter of the run: ours first, then the one we hide. Another interpreter may not know us."""


@dataclass(frozen=True, slots=True)
class ScriptResult:
    """What is left of a run."""

    code: int
    """The script's exit code; minus the signal's number if one killed it."""
    recordings: tuple[Path, ...]
    """The first rank's, or the only one's, first."""
    stopped: bool = False
    """It had its steps (`Terms.steps`), or its probe, and was ended if it had not ended by then."""
    interrupted: bool = False
    """Ctrl-C was pressed while it ran."""

    @property
    def ended_by_interrupt(self) -> bool:
        """Whether it ended by a Ctrl-C."""
        return self.code in (-signal.SIGINT, 128 + signal.SIGINT) or (self.interrupted and self.code != 0)


@dataclass(frozen=True, slots=True)
class Script:
    """What to run: a file and its arguments, or with `module` what would follow `python -m`."""

    argv: tuple[str, ...]
    module: bool = False

    @property
    def command(self) -> list[str]:
        """With the interpreter we run in."""
        return [sys.executable, *(["-m"] if self.module else []), *self.argv]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOptions:
    """What is not as under python: for a trial, not for a training."""

    dataloader: Mapping[str, Any] = field(default_factory=dict)
    """Settings in the place of the script's own, for all its DataLoaders: see `applied`."""
    steps: int | None = None
    """Of one loader; then the script is ended as by Ctrl-C, and if that does not end it, for good: see `child`."""
    output: Path | None = None
    """Where it prints, stderr included; it then has no input. None: where we do."""
    probe_s: float | None = None
    """Probe its step, so long for each measurement, and end it then; the recording is marked: see `probing`."""


def run_script(
    script: Script, record: Path, *, live: bool = True, slow_s: float | None = None, trial: TrialOptions | None = None
) -> ScriptResult:
    """Run it to its end. A script that never came to train leaves a recording of that too."""
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
            enough = (folder / STOP_FILE).exists if bounded else None
            pid, code, interrupted = child.run_child(script.command, _environment(name, job), output, enough)
        claimed, stopped = claims(folder), (folder / STOP_FILE).exists()
    if not claimed:
        claimed = [(pid, record)]
        try:
            _record_without_training(record, script, began, pid, trial)
        except RecordingError as error:  # the script has run, and its end is what counts
            log.warning("%s", error)
    own = [path for claimer, path in claimed if claimer == pid]
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

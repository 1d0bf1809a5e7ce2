"""Records the process of a script from here to its end, for `penstock run`. autostart.py calls it."""

from __future__ import annotations

import atexit
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from penstock.recording.format import AnyLine, EventLine, LoaderLine, StepLine
from penstock.watcher.active_session import publish_session
from penstock.watcher.hooks import install
from penstock.watcher.rank_files import claim, rank_and_world
from penstock.watcher.script.autostart import COMPUTE_PROBE, STOP_FILE
from penstock.watcher.session import Sink
from penstock.watcher.sinks.suspicion import SuspicionLines
from penstock.watcher.sinks.terminal import stderr_is_terminal
from penstock.watcher.start import WatchedRun

_WATCHER_FOLDER = str(Path(__file__).parent)


def record_this_process(job: Mapping[str, Any]) -> None:
    """Start the recording; `job` holds the settings of the run, which runner.py put into the environment."""
    rank, _ = rank_and_world()
    path = claim(Path(job["folder"]), Path(job["record"]), rank)
    sinks: list[Sink] = []
    if job["live"] and rank == 0 and stderr_is_terminal():
        sinks.append(SuspicionLines(slow_s=job["slow_s"]))
    stop_file = Path(job["folder"]) / STOP_FILE
    if job.get("steps") and rank == 0:
        sinks.append(_StepLimit(stop_file, job["steps"]))
    probe_s = job.get("probe_s")
    run = WatchedRun(path, sinks, probe=COMPUTE_PROBE if probe_s else "", worker_files_parent=job["folder"])
    publish_session(run)
    # The patches of the probe must lie beneath the hooks: they are installed first and removed last.
    remove_probe = [_start_probe(run, probe_s, stop_file if rank == 0 else None)] if probe_s else []
    _ScriptEnd(run, [install(run), *remove_probe], stop_file)


def _start_probe(run: WatchedRun, seconds: float, stop_file: Path | None) -> Callable[[], None]:
    from penstock.watcher.step_probe.probe import begin_probe

    return begin_probe(run.session, seconds, stop_file)


class _StepLimit:
    """A sink that makes the stop file when a loader has had the requested number of steps."""

    def __init__(self, stop_file: Path, limit: int) -> None:
        self._stop_file = stop_file
        self._limit = limit
        self._names: dict[int, str] = {}
        self._steps: Counter[str] = Counter()
        """Steps by the name of the loader: a loader that is made anew for every epoch keeps its name."""

    def put(self, line: AnyLine) -> None:
        """Count a step."""
        if type(line) is LoaderLine:
            self._names[line.loader] = line.name or str(line.loader)
        elif type(line) is StepLine:
            name = self._names.get(line.loader, "")
            self._steps[name] += 1
            if self._steps[name] == self._limit:
                self._stop_file.touch()

    def close(self) -> None:
        """Do nothing."""


class _ScriptEnd:
    """Records how the script ends, as the last line of the recording."""

    def __init__(self, run: WatchedRun, uninstall: Sequence[Callable[[], None]], stop_file: Path) -> None:
        self._run = run
        self._uninstall = uninstall
        self._stop_file = stop_file
        self._exit_code = 0
        self._how = "done"
        self._previous_excepthook = sys.excepthook
        sys.excepthook = self._excepthook
        atexit.register(self._close)

    def _excepthook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Record the error that ends the script. Its traceback is printed as it would be without Penstock."""
        interrupted = issubclass(kind, KeyboardInterrupt)
        self._exit_code, self._how = (130, "interrupted") if interrupted else (1, "raised")
        session = self._run.session
        with session.guard():
            message = f"{kind.__name__}: {error}"[:500]
            session.put(EventLine(what="raised", at_s=session.now(), detail={"error": message}))
            trace = _remove_watcher_frames(error)
        if not (interrupted and self._stop_file.exists()):  # no traceback if penstock itself stopped the script
            self._previous_excepthook(kind, error, trace)

    def _close(self) -> None:
        """End the recording. The exit code of `sys.exit` is not known here; runner.py corrects it."""
        for uninstall in self._uninstall:
            uninstall()
        self._run.close(self._exit_code, self._how)


def _remove_watcher_frames(error: BaseException) -> TracebackType | None:
    """Remove the watcher's frames from an error and the errors that led to it; return the error's traceback."""
    current: BaseException | None = error
    done: set[int] = set()
    while current is not None and id(current) not in done:
        done.add(id(current))
        current.__traceback__ = _without_watcher_frames(current.__traceback__)
        current = current.__cause__ or current.__context__
    return error.__traceback__


def _without_watcher_frames(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and _in_watcher(trace):
        trace = trace.tb_next
    entry = trace
    while entry is not None and entry.tb_next is not None:
        if _in_watcher(entry.tb_next):
            entry.tb_next = entry.tb_next.tb_next
        else:
            entry = entry.tb_next
    return trace


def _in_watcher(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(_WATCHER_FOLDER)

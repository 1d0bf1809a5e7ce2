"""This process, recorded from now on to its end, whatever the script does."""

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
from penstock.watcher.sinks.terminal import LiveLines, stderr_is_terminal
from penstock.watcher.start import WatchedRun

_OURS = str(Path(__file__).parent)


def record_this_process(job: Mapping[str, Any]) -> None:
    """`job` is what `script.py` put into the environment."""
    rank, _ = rank_and_world()
    path = claim(Path(job["folder"]), Path(job["record"]), rank)
    sinks: list[Sink] = []
    if job["live"] and rank == 0 and stderr_is_terminal():
        sinks.append(LiveLines(slow_s=job["slow_s"]))
    enough = Path(job["folder"]) / STOP_FILE
    if job.get("steps") and rank == 0:
        sinks.append(_StepLimit(enough, job["steps"]))
    probe_s = job.get("probe_s")
    watching = WatchedRun(path, sinks, probe=COMPUTE_PROBE if probe_s else "", within=job["folder"])
    publish_session(watching)
    ends = [_probe(watching, probe_s, enough if rank == 0 else None)] if probe_s else []  # beneath the hooks
    _ScriptEnd(watching, [install(watching), *ends], enough)


def _probe(watching: WatchedRun, seconds: float, enough: Path | None) -> Callable[[], None]:
    from penstock.watcher.step_probe.probe import begin_probe

    return begin_probe(watching.session, seconds, enough)


class _StepLimit:
    """A sink that tells whoever started the script when a loader has had so many steps."""

    def __init__(self, file: Path, steps: int) -> None:
        self._file = file
        self._steps = steps
        self._names: dict[int, str] = {}
        self._had: Counter[str] = Counter()

    def put(self, line: AnyLine) -> None:
        """Counts steps, of each loader on its own; one that is made anew for every epoch keeps its name."""
        if type(line) is LoaderLine:
            self._names[line.loader] = line.name or str(line.loader)
        elif type(line) is StepLine:
            name = self._names.get(line.loader, "")
            self._had[name] += 1
            if self._had[name] == self._steps:
                self._file.touch()

    def close(self) -> None:
        """Nothing is left to do."""


class _ScriptEnd:
    """Learns how the script ends, and has the last word in the recording."""

    def __init__(self, watching: WatchedRun, uninstall: Sequence[Callable[[], None]], enough: Path) -> None:
        self._watching = watching
        self._uninstall = uninstall
        self._enough = enough
        self._exit_code = 0
        self._how = "done"
        self._hook = sys.excepthook
        sys.excepthook = self._raised
        atexit.register(self._end)

    def _raised(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """The script's own last words are as they would have been without us."""
        interrupted = issubclass(kind, KeyboardInterrupt)
        self._exit_code, self._how = (130, "interrupted") if interrupted else (1, "raised")
        session = self._watching.session
        with session.guard():
            told = f"{kind.__name__}: {error}"[:500]
            session.put(EventLine(what="raised", at_s=session.now(), detail={"error": told}))
            trace = _hide_us(error)
        if not (interrupted and self._enough.exists()):  # it was told to end, and there is nothing to trace
            self._hook(kind, error, trace)

    def _end(self) -> None:
        """The exit code of `sys.exit` is not known here: whoever started the script corrects it."""
        for uninstall in self._uninstall:
            uninstall()
        self._watching.close(self._exit_code, self._how)


def _hide_us(error: BaseException) -> TracebackType | None:
    """The error and those it came from, without the frames of our wrappers."""
    at: BaseException | None = error
    seen: set[int] = set()
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        at.__traceback__ = _without_us(at.__traceback__)
        at = at.__cause__ or at.__context__
    return error.__traceback__


def _without_us(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and _is_ours(trace):
        trace = trace.tb_next
    at = trace
    while at is not None and at.tb_next is not None:
        if _is_ours(at.tb_next):
            at.tb_next = at.tb_next.tb_next
        else:
            at = at.tb_next
    return trace


def _is_ours(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(_OURS)

"""A probe in this process, which tells of itself in the recording."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from penstock.observe.hooks.patches import Patches
from penstock.observe.probing.course import Stage, Timed
from penstock.observe.probing.probe import Probe
from penstock.observe.session import Session
from penstock.recording.lines import Event


def begin_probe(session: Session, seconds: float, enough: Path | None) -> Callable[[], None]:
    """Before the watcher's hooks are installed; returns what ends it. `enough` is made when the script may be ended."""
    patches = Patches()
    Probe(seconds, _Lines(session, enough)).install(patches)
    return patches.undo


class _Lines:
    """Events named "probe": `penstock.plan.probes.scripted` reads them."""

    def __init__(self, session: Session, enough: Path | None) -> None:
        self._session = session
        self._enough = enough

    def stage(self, name: Stage, timed: Timed, *, burners: int, samples: int | None, device: str) -> None:
        self._put(timed.seconds, stage=name, steps=timed.steps, burners=burners, samples=samples, device=device)

    def end(self, why: str) -> None:
        self._put(stage="end", why=why)
        if self._enough is not None:
            self._enough.touch()

    def _put(self, seconds: float = 0.0, **detail: object) -> None:
        self._session.put(Event(what="probe", at_s=self._session.now(), seconds=seconds, detail=detail))

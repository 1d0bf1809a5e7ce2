"""The watching that is open in this process: loaders that are watched meanwhile are recorded with it."""

from __future__ import annotations

from penstock.watcher.start import WatchedRun

_opened: list[WatchedRun] = []


def active_session() -> WatchedRun | None:
    """None where none is open. (A forked child has that of its parent, which is closed there.)"""
    _opened[:] = [watching for watching in _opened if not watching.closed]
    return _opened[0] if _opened else None


def publish_session(watching: WatchedRun) -> None:
    """Until it is closed, every `penstock.watch` of this process joins in."""
    _opened.append(watching)

"""The watched run that is open in this process: loaders that are watched meanwhile are recorded with it."""

from __future__ import annotations

from penstock.watcher.start import WatchedRun

_open_runs: list[WatchedRun] = []


def active_session() -> WatchedRun | None:
    """Return the open run; None if there is none.

    A forked child inherits its parent's run, but closed, so it has none either.
    """
    _open_runs[:] = [run for run in _open_runs if not run.closed]
    return _open_runs[0] if _open_runs else None


def publish_session(run: WatchedRun) -> None:
    """Let every `penstock.watch` of this process record to this run until it is closed."""
    _open_runs.append(run)

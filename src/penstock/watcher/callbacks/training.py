"""What the callbacks have in common: one training, watched from its begin to its end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.watcher.active_session import active_session, publish_session
from penstock.watcher.rank_files import recording_of
from penstock.watcher.session import Sink
from penstock.watcher.sinks.terminal import LiveLines, stderr_is_terminal
from penstock.watcher.start import WatchedRun

log = logging.getLogger("penstock")


class WatchedTraining:
    """Watched through torch's hooks, since a trainer fetches batches in its own ways and tells callbacks nothing of it.

    The settings are those of `penstock.watch`. Each training is a run of its own: a second one writes `record` anew.
    Where the process is watched already, by `penstock run` or an open `penstock.watch`, it is one run with that.
    """

    def __init__(
        self,
        record: str | Path | None = None,
        *,
        live: bool | None = None,
        slow_s: float | None = None,
        window: int | None = None,
        sinks: Sequence[Sink] = (),
    ) -> None:
        self._record = None if record is None else Path(record)
        self._live = live
        self._slow_s = slow_s
        self._window = window
        self._sinks = tuple(sinks)
        self._mine: WatchedRun | None = None
        self._unhook: Callable[[], None] | None = None

    def begin(self, rank: int) -> None:
        """Before the trainer asks any loader for an iterator. A training that never ended was left by an error."""
        self.end("raised")
        watching = active_session()
        if watching is None:
            watching = WatchedRun(self._record and recording_of(self._record, rank), self._all_sinks(rank))
            self._mine = watching
            if watching.idle:
                return
            publish_session(watching)
        elif self._record is not None or self._sinks:
            log.warning("watched already, recorded to %s: the callback's record and sinks stay empty", watching.record)
        self._unhook = _hook(watching)

    def end(self, how: str = "done") -> None:
        """A second call does nothing."""
        if self._unhook is not None:
            self._unhook()
            self._unhook = None
        if self._mine is not None:
            self._mine.close(0 if how == "done" else 1, how)
            self._mine = None

    def _all_sinks(self, rank: int) -> list[Sink]:
        sinks = list(self._sinks)
        if stderr_is_terminal() if self._live is None else self._live:
            sinks.append(LiveLines(window=self._window, slow_s=self._slow_s, rank=rank))
        return sinks


def _hook(watching: WatchedRun) -> Callable[[], None] | None:
    """None where `penstock run` has done it before us."""
    from torch.utils.data import DataLoader

    from penstock.watcher import hooks

    if DataLoader.__iter__.__module__.startswith(hooks.__name__):
        return None
    return hooks.install(watching)

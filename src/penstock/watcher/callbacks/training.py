"""The common part of the callbacks: watches one training from its begin to its end."""

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
    """A training that is watched through the hooks in torch, because trainers do not report batches to callbacks.

    The settings are those of `penstock.watch`. Each training is a run of its own, so a second one overwrites `record`.
    If the process is watched already, by `penstock run` or an open `penstock.watch`, the training joins that run.
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
        self._own_run: WatchedRun | None = None
        """The run that this training began and must close; None if it joined another."""
        self._uninstall: Callable[[], None] | None = None

    def begin(self, rank: int) -> None:
        """Begin to watch, before the trainer iterates over any loader.

        A previous training that was not ended was left by an error, and is ended now.
        """
        self.end("raised")
        run = active_session()
        if run is None:
            run = WatchedRun(self._record and recording_of(self._record, rank), self._all_sinks(rank))
            self._own_run = run
            if run.idle:
                return
            publish_session(run)
        elif self._record is not None or self._sinks:
            log.warning(
                "this process is watched already, recorded to %s: the callback's record and sinks are not used",
                run.record,
            )
        self._uninstall = _install_hooks(run)

    def end(self, how: str = "done") -> None:
        """End the run. A second call does nothing."""
        if self._uninstall is not None:
            self._uninstall()
            self._uninstall = None
        if self._own_run is not None:
            self._own_run.close(0 if how == "done" else 1, how)
            self._own_run = None

    def _all_sinks(self, rank: int) -> list[Sink]:
        sinks = list(self._sinks)
        if stderr_is_terminal() if self._live is None else self._live:
            sinks.append(LiveLines(window=self._window, slow_s=self._slow_s, rank=rank))
        return sinks


def _install_hooks(run: WatchedRun) -> Callable[[], None] | None:
    """Install the hooks, and return the function that removes them; None if `penstock run` has installed them."""
    from torch.utils.data import DataLoader

    from penstock.watcher import hooks

    if DataLoader.__iter__.__module__.startswith(hooks.__name__):
        return None
    return hooks.install(run)

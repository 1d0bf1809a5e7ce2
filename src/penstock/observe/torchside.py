"""A torch DataLoader as the watcher sees it: its workers, what is ready, whose batch is awaited."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from penstock.observe import torchloader
from penstock.observe.loaders import Look, Parts
from penstock.observe.spool import Spool
from penstock.recording.lines import AnyLine, Loader


class TorchSide:
    """Joins the pieces of `torchloader` for one loader."""

    def __init__(self, loader: Any, number: int, name: str, spool: Spool, began: float) -> None:
        self.loader = loader
        self.number = number
        self.name = name
        self._spool = spool
        self._began = began
        self._pids: dict[int, int] = {}

    def describe(self) -> Loader:
        """Settings as requested and as in force."""
        return torchloader.describe(self.loader, self.number, self.name)

    def iterator(self, number: int) -> Iterator[Any]:
        """torch's own, with a stopwatch in its workers."""
        return self._timed(self.loader, number, iter)

    def _timed(self, loader: Any, number: int, make: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
        iterator = torchloader.make_iterator(loader, self.number, number, self._spool, self._began, make)
        self._pids = torchloader.worker_pids(iterator)
        return iterator

    def look(self, iterator: Iterator[Any]) -> Look:
        """What has arrived, what is outstanding, whose turn it is."""
        return torchloader.look(iterator)

    def parts(self, iterator: Iterator[Any]) -> Parts:
        """Drawing the next indices happens inside the wait."""
        return torchloader.take_parts(iterator)

    def processes(self) -> dict[int, int]:
        """Of the pass under way."""
        return self._pids

    def poll(self, at_s: float) -> Sequence[AnyLine]:
        """Workers write to the spool, which is drained for all loaders together."""
        return ()

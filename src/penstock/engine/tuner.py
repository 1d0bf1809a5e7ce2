"""Watches the hops while the engine runs, and turns the controller's decisions into deeds."""

from __future__ import annotations

import logging
from collections import deque

from penstock.core.stats import EngineStats
from penstock.engine.controller import Change, Controller, Knobs, Window
from penstock.engine.dispatch import Dispatch
from penstock.engine.meter import Crowd, Meter
from penstock.engine.readers import Readers
from penstock.engine.residency import Residency
from penstock.engine.shelf import Shelf

log = logging.getLogger("penstock")

LOOK_S = 1.0
"""Between two looks: many batches for a fast loader, and for a slow one soon enough."""
KEPT_CHANGES = 100


class Tuner:
    """Owned by the conductor's thread; `stats` may be called from any."""

    def __init__(self, residency: Residency, readers: Readers, dispatch: Dispatch, shelf: Shelf, knobs: Knobs) -> None:
        self.knobs = knobs
        self.batches = self.samples = self.reads = self.bytes_read = 0
        self._residency = residency
        self._readers = readers
        self._dispatch = dispatch
        self._shelf = shelf
        self._controller = Controller()
        self._read = Meter("read")
        self._decode = Meter("decode")
        self._before: EngineStats | None = None
        """When the window began."""
        self._seconds = 0.0
        """That the window has had before `_since`: pauses do not count, passes may be shorter than a window."""
        self._since: float | None = None
        self._changes: deque[str] = deque(maxlen=KEPT_CHANGES)

    def note(self, now: float, reading: Crowd | None, decoding: Crowd | None) -> None:
        """What readers and workers do from now on."""
        self._read.note(now, reading)
        self._decode.note(now, decoding)

    def pause(self, now: float) -> None:
        """No epoch is under way: the window goes on with the next one."""
        if self._since is not None:
            self._seconds += now - self._since
            self._since = None

    def look(self, now: float) -> None:
        """Once in LOOK_S, see whether something should be turned, and turn it."""
        if self._since is None:
            self._since = now
        seconds = self._seconds + now - self._since
        settled, before = self._dispatch.settled, self._before
        if settled and before is not None and seconds < LOOK_S:
            return
        stats = self._before = self.stats(now)
        self._seconds, self._since = 0.0, now
        if not settled or before is None:
            return
        change = self._controller.look(_window(seconds, before, stats), self.knobs)
        if change is not None:
            self._apply(change)

    def _apply(self, change: Change) -> None:
        log.info("%s", change)
        self._changes.append(str(change))
        self.knobs = self.knobs.turned(change)
        match change.name:
            case "readers":
                self._readers.resize(int(change.new))
                self._residency.in_flight = int(change.new)
            case "workers":
                self._dispatch.hire(int(change.new - change.old))
            case "task_s":
                self._dispatch.task_s = change.new

    def stats(self, now: float) -> EngineStats:
        """Everything there is to know at this moment."""
        return EngineStats(
            read=self._read.hop(now),
            decode=self._decode.hop(now),
            waited_s=self._shelf.waited_s(now),
            decoding_s=self._dispatch.busy_s,
            reads=self.reads,
            bytes_read=self.bytes_read,
            rereads=self._residency.rereads,
            tasks=self._dispatch.tasks,
            samples=self.samples,
            batches=self.batches,
            worker_deaths=self._dispatch.deaths,
            readers=self.knobs.readers.now,
            workers=self.knobs.workers.now,
            look_ahead=self.knobs.look_ahead.now,
            task_s=self.knobs.task_s,
            arena_used_bytes=self._residency.used_bytes,
            ready_batches=len(self._shelf),
            changes=tuple(self._changes),
        )


def _window(seconds: float, before: EngineStats, after: EngineStats) -> Window:
    return Window(
        seconds=seconds,
        waited_s=after.waited_s - before.waited_s,
        bytes_read=after.bytes_read - before.bytes_read,
        read=after.read.since(before.read),
        decode=after.decode.since(before.decode),
        decoding_s=after.decoding_s - before.decoding_s,
        tasks=after.tasks - before.tasks,
        samples=after.samples - before.samples,
    )

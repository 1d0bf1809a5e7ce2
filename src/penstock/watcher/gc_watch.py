"""Records the full collections of Python's garbage collector, which pause all Python threads of the process."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress

from penstock.recording.format import EventLine
from penstock.watcher.session import Session

MIN_EVENT_S = 0.001
"""Seconds of the shortest collection that gets a line in the recording."""


def watch_collector(session: Session) -> Callable[[], None]:
    """Record every full collection as an event, and as a phase if it happens within a step.

    Collections of the young generations are left out, because they are short and frequent. The function that is
    returned stops the recording.
    """
    start_of_collection: list[float] = []
    """Seconds on the session's clock; empty outside a full collection."""

    def on_gc(phase: str, info: dict[str, int]) -> None:
        if info["generation"] < 2 or session.off:
            return
        with session.guard():
            if phase == "start":
                session.enter("gc")
                start_of_collection[:] = [session.now()]
            elif start_of_collection:
                began_s = start_of_collection.pop()
                session.leave()
                seconds = session.now() - began_s
                if seconds >= MIN_EVENT_S:
                    detail = {"freed": info["collected"]}
                    session.put(EventLine(what="gc", at_s=began_s, seconds=seconds, detail=detail))

    def stop() -> None:
        with suppress(ValueError):  # the script has cleared the list
            gc.callbacks.remove(on_gc)

    gc.callbacks.append(on_gc)
    return stop

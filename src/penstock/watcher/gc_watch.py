"""Python's garbage collector, which stops whoever happens to be running."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress

from penstock.recording.format import EventLine
from penstock.watcher.session import Session

TOLD_S = 0.001
"""Collections that took less are not worth a line."""


def watch_collector(session: Session) -> Callable[[], None]:
    """Every full collection is an event, and a phase if it falls into a step; the young ones are short, and many.

    Returns how to stop that.
    """
    since: list[float] = []

    def collecting(when: str, facts: dict[str, int]) -> None:
        if facts["generation"] < 2 or session.off:
            return
        with session.guard():
            if when == "start":
                session.enter("gc")
                since[:] = [session.now()]
            elif since:
                began = since.pop()
                session.leave()
                seconds = session.now() - began
                if seconds >= TOLD_S:
                    session.put(EventLine(what="gc", at_s=began, seconds=seconds, detail={"freed": facts["collected"]}))

    def stop() -> None:
        with suppress(ValueError):  # the script has cleared the list
            gc.callbacks.remove(collecting)

    gc.callbacks.append(collecting)
    return stop

"""Steps of a script that uses no loader: they end with the step of the optimizer, and their waits are not known."""

from __future__ import annotations

from typing import Any

from penstock.recording.format import LoaderLine
from penstock.watcher.session import Session, StepTracker

STEPS_BEFORE = 3
"""Steps of an optimizer outside all loaders from which on a script counts as one without a loader."""


class StepsWithoutLoader:
    """Notes a step between two steps of the first optimizer, while no loader's epoch is open."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._optimizer = 0
        """The `id` of the optimizer whose steps count."""
        self._steps = 0
        self._tracker: StepTracker | None = None

    def optimizer_stepped(self, optimizer: Any) -> None:
        """Note that an optimizer has stepped."""
        session, tracker = self._session, self._tracker
        if session.off or session._current is not tracker:  # a loader's step is open, or has ended this one
            self._steps, self._tracker = 0, None
            return
        self._optimizer = self._optimizer or id(optimizer)
        if id(optimizer) != self._optimizer:
            return
        with session.guard():
            if tracker is None:
                self._steps += 1
                if self._steps < STEPS_BEFORE:
                    return
                number = session.new_loader_number()
                session.put(LoaderLine(loader=number, name="no loader", type="none"))
                self._tracker = tracker = session.begin_epoch(number, 0, _no_samples)
            tracker.batch_requested()
            tracker.batch_received(None)


def _no_samples(_: Any) -> None:
    return None

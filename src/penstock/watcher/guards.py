"""Context managers around code that runs on the training's thread several times per step.

They are classes, because a generator with `contextlib.contextmanager` would cost a microsecond more at each use.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.watcher.session import Session


class Guard(AbstractContextManager[None]):
    """Catches an exception of the watcher and turns the watching off. It has no state, so a session needs only one."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._session.fail(error)
        return True


class PhaseGuard(AbstractContextManager[None]):
    """Counts the time of its block as a phase of the step, by name."""

    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self._name = name

    def __enter__(self) -> None:
        self._session.enter(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.leave()

"""What stands around code on the training's thread, several times a step.

Classes, not generators: `contextlib.contextmanager` would cost a microsecond each time.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.watcher.session import Session


class Guard(AbstractContextManager[None]):
    """An error inside turns the watching off and goes no further. One for all: it remembers nothing."""

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
    """A part of the step, by name."""

    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self._name = name

    def __enter__(self) -> None:
        self._session.enter(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.leave()

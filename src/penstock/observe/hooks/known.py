"""The script's loaders that were met so far: each has one number and one description, and none is kept alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from penstock.observe.loaders import Side
from penstock.observe.start import Watching

S = TypeVar("S", bound=Side)


class Known(Generic[S]):
    """By the loader itself."""

    def __init__(self, watching: Watching) -> None:
        self._watching = watching
        self._sides: weakref.WeakKeyDictionary[Any, S] = weakref.WeakKeyDictionary()

    def side_of(self, loader: Any, meet: Callable[[int], S]) -> S:
        """Its side; a loader that is new gets a number from the session, and is described."""
        side = self._sides.get(loader)
        if side is None:
            session = self._watching.session
            side = self._sides[loader] = meet(session.number())
            self._watching.sides.append(side)
            session.put(side.describe())
        return side

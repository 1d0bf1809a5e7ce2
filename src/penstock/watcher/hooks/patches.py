"""Attributes of torch and other modules that are replaced while a run is watched, and restored afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_ABSENT = object()
"""Stands for the value of an attribute that did not exist."""


class Patches:
    """A set of replaced attributes, which are restored in reverse order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def set(self, owner: Any, name: str, value: Any) -> Callable[[], None]:
        """Replace one attribute, and return a function that restores it unless it was replaced again meanwhile."""
        before = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)

        def undo() -> None:
            if undo in self._undo:
                self._undo.remove(undo)
            if vars(owner).get(name) is not value:
                return
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        self._undo.append(undo)
        return undo

    def on_undo(self, action: Callable[[], None]) -> None:
        """Let `undo` call this function, too."""
        self._undo.append(action)

    def undo(self) -> None:
        """Restore all attributes, and call the functions of `on_undo`."""
        for undo in reversed(self._undo.copy()):
            undo()
        self._undo.clear()


class FunctionPatch:
    """A wrapper around one function of a module, which can be put in and taken out many times.

    If other code replaces the function meanwhile, its replacement is kept.
    """

    def __init__(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        self._owner = owner
        self._name = name
        self._wrap = wrap
        self._original = self._wrapper = _ABSENT

    def enable(self) -> None:
        """Put the wrapper around the function that is there now."""
        current = getattr(self._owner, self._name)
        if current is not self._wrapper:
            if current is not self._original:
                self._original, self._wrapper = current, self._wrap(current)
            setattr(self._owner, self._name, self._wrapper)

    def disable(self) -> None:
        """Restore the function, unless other code has replaced the wrapper."""
        if getattr(self._owner, self._name) is self._wrapper:
            setattr(self._owner, self._name, self._original)

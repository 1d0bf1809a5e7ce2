"""Attributes of other people's classes and modules, replaced for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_ABSENT = object()


class Patches:
    """Remembers what each attribute was, its absence included, and puts all of it back in reverse."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def set(self, owner: Any, name: str, value: Any) -> Callable[[], None]:
        """Replace one attribute; returns what puts it back, once, and only if nobody replaced ours since."""
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

    def also(self, undo: Callable[[], None]) -> None:
        """Something else that must be undone."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Everything is as it was."""
        for undo in reversed(self._undo.copy()):
            undo()
        self._undo.clear()


class FunctionPatch:
    """One function of a module, with ours around it or without. Whoever else replaces it meanwhile is kept."""

    def __init__(self, owner: Any, name: str, around: Callable[[Any], Any]) -> None:
        self._owner = owner
        self._name = name
        self._around = around
        self._theirs = self._ours = _ABSENT

    def on(self) -> None:
        """Ours, around what is there now."""
        there = getattr(self._owner, self._name)
        if there is not self._ours:
            if there is not self._theirs:
                self._theirs, self._ours = there, self._around(there)
            setattr(self._owner, self._name, self._ours)

    def off(self) -> None:
        """As it was, unless somebody put his around ours."""
        if getattr(self._owner, self._name) is self._ours:
            setattr(self._owner, self._name, self._theirs)

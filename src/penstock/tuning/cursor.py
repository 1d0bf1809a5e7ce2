"""One epoch's order, handed to one inner loader after the other: every batch of indices goes out exactly once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any


class Cursor:
    """Where in the sampler's order an epoch is."""

    def __init__(self, sampler: Iterable[Any]) -> None:
        self._sampler = sampler
        self._draw: Iterator[Any] | None = None
        self._back: deque[Any] = deque()

    @property
    def begun(self) -> bool:
        """Whether the sampler was asked for its order."""
        return self._draw is not None

    def begin(self) -> None:
        """From the start. Called as often as torch calls iter(): a sampler may throw its dice at every such call."""
        self._draw = iter(self._sampler)

    def take(self) -> Any:
        """The next batch of indices; StopIteration at the end."""
        if self._back:
            return self._back.popleft()
        assert self._draw is not None, "nothing is drawn before the order has begun"
        return next(self._draw)

    def give_back(self, taken: Iterable[Any]) -> None:
        """What was handed to a loader that never began: it comes next."""
        self._back.extendleft(reversed(list(taken)))


class Share:
    """The part of an epoch's order that one inner loader works on: its batch_sampler.

    It ends when it is closed, though the epoch goes on: what the loader has drawn by then it still delivers.
    """

    def __init__(self, cursor: Cursor) -> None:
        self.open(cursor)

    def open(self, cursor: Cursor) -> None:
        """Work on this epoch from here on: again, for a loader whose workers stay for the next one."""
        self._cursor = cursor
        self._first = not cursor.begun
        self._noted: list[Any] | None = []
        self.closed = False

    def close(self) -> None:
        """No more from here."""
        self.closed = True

    def reopen(self) -> None:
        """The loader that was to follow never began."""
        self.closed = False

    def settle(self) -> None:
        """The loader has started: what it takes it keeps."""
        self._noted = None

    def undo(self) -> None:
        """The loader could not be started: everything that it took goes back."""
        self._cursor.give_back(self._noted or ())
        self.settle()

    def __iter__(self) -> Share:
        if self._first:
            self._cursor.begin()
        return self

    def __next__(self) -> Any:
        if self.closed:
            raise StopIteration
        taken = self._cursor.take()
        if self._noted is not None:
            self._noted.append(taken)
        return taken

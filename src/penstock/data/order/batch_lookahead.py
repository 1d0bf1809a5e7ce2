"""The batches of a pass, drawn ahead of the engine in the training loop's own thread.

A sampler is the user's code: it may be endless, and may throw torch's dice. So it is asked where a DataLoader asks it,
by the loop that wants the batches, and a few further at most than the engine can look before it comes again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Self

from penstock.data.order.batches import BatchIndices
from penstock.errors import PenstockError

FIRST_LOOK = 64
"""Batches drawn before the slabs are made: the largest of them is what a slab must hold."""
AT_ONCE = 8
"""Batches drawn in one go after that: between two steps of a training, code is cold, and one batch takes as long as
the next several together."""


class BatchLookahead:
    """Two ends: the loop draws portions and takes those it delivers; the engine's thread iterates over them."""

    def __init__(self, portions: Iterator[BatchIndices], numbers: Iterator[int]) -> None:
        self._source = portions
        self._numbers = numbers
        self._drawn = deque(islice(portions, FIRST_LOOK))
        self._to_make: deque[tuple[int, BatchIndices]] = deque()
        self._to_deliver: deque[tuple[int, BatchIndices]] = deque()
        self._room = self._least = 0
        self._ended = False
        """Whether what has been handed over is all that this engine will get."""

    @property
    def largest(self) -> int:
        """Samples in the largest portion that is drawn and not handed over; 0 when there is none left."""
        return max((len(portion.samples) for portion in self._drawn), default=0)

    def open(self, room: int, least: int) -> None:
        """Begin to hand over: never fewer than `least` that nobody has taken, as far as `room` samples hold them."""
        self._room, self._least, self._ended = room, least, False
        self._hand_over(least)

    @property
    def over(self) -> bool:
        """Whether the last portion there is has been taken."""
        return not self._to_deliver and not self._drawn

    @property
    def next_number(self) -> int | None:
        """Of what `next_delivered` would give."""
        return self._to_deliver[0][0] if self._to_deliver else None

    def next_delivered(self) -> tuple[int, BatchIndices] | None:
        """Number and portion of what comes next; None after the last, and before one that needs a larger slab."""
        if not self._to_deliver:
            return None
        following = self._to_deliver.popleft()
        if len(self._to_deliver) < self._least:
            self._hand_over(self._least + AT_ONCE - 1)
        return following

    def _hand_over(self, most: int) -> None:
        while len(self._to_deliver) < most:
            if not self._drawn:
                self._drawn.extend(islice(self._source, 1))
            if not self._drawn or len(self._drawn[0].samples) > self._room:
                self._ended = True
                return
            numbered = next(self._numbers), self._drawn.popleft()
            self._to_deliver.append(numbered)
            self._to_make.append(numbered)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[int, BatchIndices]:
        ended = self._ended  # before looking: what is handed over after that would be missed
        try:
            return self._to_make.popleft()
        except IndexError:
            if ended:
                raise StopIteration from None
            raise PenstockError("the engine has looked too far ahead: this is a defect of ours", stage="plan") from None

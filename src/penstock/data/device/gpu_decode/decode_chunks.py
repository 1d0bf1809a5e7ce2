"""How much is decoded at a time, and how many such portions lie on the card: what decoding takes of its memory."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

PORTION_PIXELS = 1 << 27
"""Decoded at a time: 0.4 GB of the card's memory. A decoder is given long lists, which it is quicker with."""
MOST_KEPT = 2
"""Portions: one being decoded, one being placed."""
LOOK_AGAIN_S = 100e-6
"""Between two looks at a portion that is waited for; a hundredth of what decoding one takes."""


def split_chunks(pixels: Sequence[int], most: int) -> list[slice]:
    """Neighbours together, of no more than so many pixels in all, but one at least; alike in number if they can be."""
    pieces = _cut(pixels, most, len(pixels))
    return _cut(pixels, most, -(-len(pixels) // max(1, len(pieces))))


def _cut(pixels: Sequence[int], most: int, count: int) -> list[slice]:
    pieces: list[slice] = []
    begin = total = 0
    for at, own in enumerate(pixels):
        if at > begin and (total + own > most or at - begin >= count):
            pieces.append(slice(begin, at))
            begin, total = at, 0
        total += own
    return [*pieces, slice(begin, len(pixels))] if pixels else []


class DecodedChunks:
    """Portions of decoded pictures, each until the card has placed it; no third is decoded before."""

    def __init__(self) -> None:
        self._room = threading.Semaphore(MOST_KEPT)
        self._lock = threading.Lock()
        self._placed: deque[tuple[Any, object]] = deque()
        """What the card has been told to place: an event behind that, and the pictures."""

    def begin(self) -> None:
        """Wait until there is room. By looking again: torch's check for synchronisations would blame the training."""
        self._let_go()
        while not self._room.acquire(blocking=False):
            time.sleep(LOOK_AGAIN_S)
            self._let_go()

    def end(self, pictures: object, placed: Any | None) -> None:
        """Their memory is free when the event has passed; at once if there is none."""
        if placed is None:
            self._room.release()
            return
        with self._lock:
            self._placed.append((placed, pictures))

    def _let_go(self) -> None:
        with self._lock:
            while self._placed and self._placed[0][0].query():
                self._placed.popleft()
                self._room.release()

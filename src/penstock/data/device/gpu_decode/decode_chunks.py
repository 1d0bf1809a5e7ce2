"""Chunks of images to decode at a time, which bound the GPU memory that decoding takes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

CHUNK_PIXELS = 1 << 27
"""Pixels decoded at a time: 0.4 GB of GPU memory. A decoder gets long lists because it decodes them faster."""
MAX_CHUNKS = 2
"""Decoded chunks in GPU memory: one that is being decoded and one that is being placed."""
POLL_S = 100e-6
"""Seconds between two checks of a chunk that is waited for: a hundredth of what decoding one takes."""


def split_chunks(pixels: Sequence[int], max_pixels: int) -> list[slice]:
    """Split images into chunks of neighbours with at most `max_pixels` in all, but at least one image.

    The chunks have equal numbers of images if possible.
    """
    chunks = _split(pixels, max_pixels, len(pixels))
    return _split(pixels, max_pixels, -(-len(pixels) // max(1, len(chunks))))


def _split(pixels: Sequence[int], max_pixels: int, max_images: int) -> list[slice]:
    chunks: list[slice] = []
    begin = total = 0
    for index, count in enumerate(pixels):
        if index > begin and (total + count > max_pixels or index - begin >= max_images):
            chunks.append(slice(begin, index))
            begin, total = index, 0
        total += count
    return [*chunks, slice(begin, len(pixels))] if pixels else []


class DecodedChunks:
    """The decoded chunks in GPU memory: no third one is decoded before the first has been placed into its batch."""

    def __init__(self) -> None:
        self._free = threading.Semaphore(MAX_CHUNKS)
        self._lock = threading.Lock()
        self._in_use: deque[tuple[Any, object]] = deque()
        """An event for each chunk that fires when its images have been placed, and the images."""

    def reserve(self) -> None:
        """Wait until another chunk may be decoded.

        This polls instead of synchronising, because torch's check for synchronisations would report the training loop.
        """
        self._release_placed()
        while not self._free.acquire(blocking=False):
            time.sleep(POLL_S)
            self._release_placed()

    def hold(self, images: object, placed: Any | None) -> None:
        """Keep the images of a reserved chunk until the event fires; release the chunk at once without an event."""
        if placed is None:
            self._free.release()
            return
        with self._lock:
            self._in_use.append((placed, images))

    def _release_placed(self) -> None:
        with self._lock:
            while self._in_use and self._in_use[0][0].query():
                self._in_use.popleft()
                self._free.release()

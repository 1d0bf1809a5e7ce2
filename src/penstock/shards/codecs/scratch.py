"""Memory that a thread uses again and again, for what is done with before its next sample."""

from __future__ import annotations

import threading
from math import prod

import numpy as np
from numpy.typing import NDArray

MAX_REUSED_BYTES = 64 << 20
"""More is given back after use: few pictures are that large, and every worker would keep it for ever."""
CACHE_LINE_BYTES = 64
"""Bytes of a cache line, where each piece begins. numpy's begin 16 bytes into a page, and some processors copy to just
behind where bytes lie in a page of their own, as every eighth part of a tar does, at a third of the rate."""


class ScratchBuffer(threading.local):
    """One piece for each thread. Fresh memory costs a page fault every 4 KiB, as much as resizing the picture in it."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def array(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Of that shape, holding anything; what was in it before is lost."""
        size = prod(shape)
        memory = self._memory
        if size > len(memory):
            memory = _allocate_aligned(size)
            if size <= MAX_REUSED_BYTES:
                self._memory = memory
        return memory[:size].reshape(shape)


def _allocate_aligned(size: int) -> NDArray[np.uint8]:
    memory = np.empty(size + CACHE_LINE_BYTES, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE_BYTES
    return memory[start : start + size]

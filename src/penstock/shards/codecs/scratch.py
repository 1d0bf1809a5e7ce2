"""Memory that a thread uses again and again, for what is done with before its next sample."""

from __future__ import annotations

import threading
from math import prod

import numpy as np
from numpy.typing import NDArray

KEPT_BYTES = 64 << 20
"""More is given back after use: few pictures are that large, and every worker would keep it for ever."""


class Scratch(threading.local):
    """One piece for each thread. Fresh memory costs a page fault every 4 KiB, as much as resizing the picture in it."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def array(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Of that shape, holding anything; what was in it before is lost."""
        size = prod(shape)
        if size > KEPT_BYTES:
            return np.empty(shape, np.uint8)
        if size > len(self._memory):
            self._memory = np.empty(size, np.uint8)
        return self._memory[:size].reshape(shape)

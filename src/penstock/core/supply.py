"""Where batches come from, as the engine sees it: blocks of bytes to fetch, rows of numbers to hand to workers."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.core.work import Rows

Ids = NDArray[np.int64]
NO_BLOCK = -1
NO_BASE = -1
"""Where the block of a sample lies that has none."""


def none_apart(samples: Ids) -> int:  # noqa: ARG001
    """Bytes that workers read for themselves, where all samples lie in blocks."""
    return 0


class Supply(Protocol):
    """Made by the flow; called by the conductor, and `fill` by its reader threads."""

    def blocks_of(self, samples: Ids) -> Ids:
        """The block each sample's bytes are in; NO_BLOCK where nothing needs to be fetched."""
        ...

    def block_bytes(self, block: int) -> int:
        """How much arena the block takes."""
        ...

    def fill(self, block: int, into: memoryview) -> int:
        """Fetch the block, blocking; returns the bytes read from storage. Called from several threads at once."""
        ...

    def rows(self, samples: Ids, slots: Ids, bases: Ids) -> Rows:
        """What workers are told: `bases` is where each sample's block lies in the arena, or NO_BASE."""
        ...

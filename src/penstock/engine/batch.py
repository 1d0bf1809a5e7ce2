"""A batch while it is being put together."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import BatchRequest, Extras
from penstock.core.types import Ids


@dataclass(slots=True, eq=False)
class Batch:
    """A job with a slab: what is done, what is under way, what is still waiting for bytes."""

    request: BatchRequest
    blocks: Ids
    slab: int
    ready: NDArray[np.bool_] = field(init=False)
    """Slots whose bytes are in the arena and which nobody has been given yet."""
    waiting: int = 0
    """How many those are: asked far more often than it changes."""
    given: NDArray[np.bool_] = field(init=False)
    left: int = field(init=False)
    """Slots that are not finished."""
    under_way: int = 0
    """Slots that are with a worker now: the slab cannot be used for anything else while there are any."""
    extras: Extras = field(default_factory=list)
    abandoned: bool = False

    def __post_init__(self) -> None:
        count = len(self.request.samples)
        self.ready = np.zeros(count, bool)
        self.given = np.zeros(count, bool)
        self.left = count

    def bytes_here(self, slots: NDArray[np.bool_]) -> None:
        """Of these: they can be given out, unless they were."""
        self.ready |= slots & ~self.given
        self.waiting = int(np.count_nonzero(self.ready))

    @property
    def waits_for_bytes(self) -> bool:
        """Whether some slots can not be given out yet."""
        return not bool((self.ready | self.given).all())

    def take(self, most: int) -> Ids:
        """Up to `most` slots to give to a worker."""
        slots = np.flatnonzero(self.ready)[:most]
        self.ready[slots] = False
        self.given[slots] = True
        self.waiting -= len(slots)
        self.under_way += len(slots)
        return slots

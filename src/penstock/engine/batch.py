"""A batch in the engine: `RequestLookahead` reads its blocks ahead of time, `Batch` is being decoded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import NO_BLOCK, BatchRequest, BlockSource, Extras
from penstock.core.types import Ids
from penstock.engine.block_cache import BlockCache

MAX_PLANNED = 64
"""Batches whose blocks are requested before they have a slab, as far as the arena has space."""
PLANNED_AT_ONCE = 8
"""Batches that are planned together: planning one after each step of the training loop would run with cold caches. No
more, so that workers can begin with the first of them: at the start of an epoch the training loop waits."""


class RequestLookahead:
    """The next batches of an epoch, whose blocks are read before there is a slab for them.

    Only the scheduler's thread uses it.
    """

    def __init__(self, block_source: BlockSource, block_cache: BlockCache) -> None:
        self._block_source = block_source
        self._block_cache = block_cache
        self._requests: Iterator[BatchRequest] | None = None
        """The requests that are not planned yet; None if there are no more."""
        self._planned: deque[tuple[BatchRequest, Ids]] = deque()
        """Planned requests with the block of each sample."""

    def begin(self, requests: Iterator[BatchRequest] | None) -> None:
        """Begin an epoch, and drop what is left of the one before."""
        self._requests = requests
        self._planned.clear()

    def __len__(self) -> int:
        return len(self._planned)

    @property
    def exhausted(self) -> bool:
        """Whether no batch follows."""
        return self._requests is None and not self._planned

    @property
    def is_full(self) -> bool:
        """Whether fewer than `PLANNED_AT_ONCE` more may be planned."""
        return len(self._planned) > MAX_PLANNED - PLANNED_AT_ONCE

    @property
    def one_worker(self) -> bool:
        """Whether the batches that were planned last are made by one worker each."""
        return bool(self._planned) and self._planned[-1][0].one_worker

    def can_plan(self, limit: int) -> bool:
        """Whether `plan(limit)` would do something."""
        return self._requests is not None and not self.is_full and self._has_space(limit)

    def plan(self, limit: int) -> None:
        """Request the blocks of the next batches, in order: at most PLANNED_AT_ONCE, and up to `limit` in all."""
        if self.is_full:
            return
        for _ in range(PLANNED_AT_ONCE):
            if self._requests is None or not self._has_space(limit):
                return
            request = next(self._requests, None)
            if request is None:
                self._requests = None
                return
            blocks = self._block_source.blocks_of(request.samples)
            # All blocks are needed; in the order of their position a disk seeks less. np.unique is not used: its C++
            # code aborts a program that ends while a daemon thread is in it.
            for block in sorted(set(blocks.tolist())):
                if block != NO_BLOCK:
                    self._block_cache.request(block)
            self._planned.append((request, blocks))
            self._block_cache.start_reads()

    def _has_space(self, limit: int) -> bool:
        return len(self._planned) < limit and not self._block_cache.blocked

    def pop(self) -> tuple[BatchRequest, Ids]:
        """Remove the next request, and return it with the blocks of its samples."""
        return self._planned.popleft()


@dataclass(slots=True, eq=False)
class Batch:
    """A batch that has a slab. Each of its slots waits for its block, is ready, is with a worker, or is done."""

    request: BatchRequest
    blocks: Ids
    """The block of each sample."""
    slab: int
    """Number of the slab."""
    ready: NDArray[np.bool_] = field(init=False)
    """Slots whose block is in the arena and which have not been assigned to a worker."""
    ready_count: int = 0
    """Number of ready slots: it is read far more often than it changes."""
    assigned: NDArray[np.bool_] = field(init=False)
    """Slots that have been assigned to a worker, whether or not they are done."""
    remaining: int = field(init=False)
    """Slots that are not done."""
    in_progress: int = 0
    """Slots that are with a worker now; while there are any, the slab cannot be reused."""
    extras: Extras = field(default_factory=list)
    abandoned: bool = False
    """Whether its epoch was ended before the batch was complete."""

    def __post_init__(self) -> None:
        count = len(self.request.samples)
        self.ready = np.zeros(count, bool)
        self.assigned = np.zeros(count, bool)
        self.remaining = count

    def mark_loaded(self, slots: NDArray[np.bool_]) -> None:
        """Note that the blocks of these slots are in the arena, so that the slots can be assigned."""
        self.ready |= slots & ~self.assigned
        self.ready_count = int(np.count_nonzero(self.ready))

    @property
    def waits_for_blocks(self) -> bool:
        """Whether the block of some slot is not in the arena yet."""
        return not bool((self.ready | self.assigned).all())

    def take(self, max_slots: int) -> Ids:
        """Return up to `max_slots` ready slots, which are assigned to a worker from now on."""
        slots = np.flatnonzero(self.ready)[:max_slots]
        self.ready[slots] = False
        self.assigned[slots] = True
        self.ready_count -= len(slots)
        self.in_progress += len(slots)
        return slots

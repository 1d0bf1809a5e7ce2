"""Which blocks are in the arena. They are read in the order of need, and freed when their last sample is decoded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from penstock.core.contracts import NO_BLOCK, NO_BLOCK_START, BlockSource
from penstock.core.types import Ids
from penstock.engine.arena import Arena
from penstock.engine.readers import FetchedBlock, Readers
from penstock.errors import SettingError

BlockUses = Callable[[int], int]
"""Returns how many samples of a block an epoch takes; 0 for a block that is not of this epoch."""
LOADING, READY = "loading", "ready"
QUEUED_PER_READ = 4
"""One more request for each so many reads in flight waits in the readers' queue, so that no reader idles until the
scheduler hears that a read has ended."""


@dataclass(slots=True)
class _CachedBlock:
    start: int
    """Offset in the arena."""
    length: int
    state: str = LOADING
    pins: int = 0
    """Samples of the block that are with a worker now."""


class BlockCache:
    """The blocks of an epoch. Only the scheduler's thread uses it; readers report to that thread through events."""

    def __init__(self, arena: Arena, readers: Readers, block_source: BlockSource, max_reads: int) -> None:
        self.max_reads = max_reads
        """How many reads run at a time: the one setting of I/O concurrency."""
        self.loading = 0
        """Blocks that have been requested from the readers and are not read yet."""
        self.blocked = False
        """Whether the next block waits for space in the arena."""
        self.rereads = 0
        """Blocks that were evicted although they were still needed."""
        self._arena = arena
        self._readers = readers
        self._block_source = block_source
        self._uses: BlockUses = _no_uses
        self._remaining: dict[int, int] = {}
        """Samples still to be decoded, for blocks of this epoch that are decoded in part."""
        self._cached: dict[int, _CachedBlock] = {}
        self._queue: deque[int] = deque()
        """Blocks to be read, in the order of need."""
        self._queued: set[int] = set()

    def begin_epoch(self, uses: BlockUses) -> None:
        """Begin an epoch that takes `uses(block)` samples of each block."""
        self._uses = uses
        self._remaining.clear()
        self._queue.clear()
        self._queued.clear()
        self.blocked = False
        unused = [number for number, block in self._cached.items() if block.state == READY and block.pins == 0]
        for number in unused:
            self._drop(number)

    def request(self, block: int) -> None:
        """Put a block into the queue, unless it is cached or queued."""
        if block not in self._cached and block not in self._queued:
            self._queue.append(block)
            self._queued.add(block)

    def start_reads(self) -> None:
        """Start as many reads as are allowed and find space in the arena."""
        self.blocked = False
        limit = self.max_reads + 1 + self.max_reads // QUEUED_PER_READ
        while self._queue and self.loading < limit:
            length = self._block_source.block_bytes(self._queue[0])
            start = self._arena.allocate(length)
            if start is None:
                self.blocked = True
                return
            block = self._queue.popleft()
            self._queued.discard(block)
            self._cached[block] = _CachedBlock(start, length)
            self.loading += 1
            self._readers.request(block, start, length)

    @property
    def queue_length(self) -> int:
        """Blocks that are requested and not yet being read."""
        return len(self._queue)

    @property
    def used_bytes(self) -> int:
        """Allocated bytes of the arena."""
        return self._arena.used_bytes

    def add_fetched(self, fetched: FetchedBlock) -> bool:
        """Note that a block has been read; return whether it is still needed."""
        self.loading -= 1
        self._cached[fetched.block].state = READY
        if self._still_needed(fetched.block) <= 0:  # it was requested by an epoch that has been abandoned
            self._drop(fetched.block)
            return False
        return True

    def start_of(self, block: int) -> int | None:
        """Return the arena offset of a block; None if it is not read yet."""
        cached = self._cached.get(block)
        return cached.start if cached is not None and cached.state == READY else None

    def pin(self, blocks: Ids) -> Ids:
        """Keep the blocks of these samples, which go to a worker, and return the arena offset of each."""
        return np.array(
            [NO_BLOCK_START if block == NO_BLOCK else self._pin_one(block) for block in blocks.tolist()], np.int64
        )

    def _pin_one(self, block: int) -> int:
        cached = self._cached[block]
        cached.pins += 1
        return cached.start

    def unpin(self, blocks: Ids, *, decoded: bool) -> None:
        """Note that these samples have come back from a worker, decoded or to be tried again."""
        for block in blocks.tolist():
            if block == NO_BLOCK:
                continue
            cached = self._cached[block]
            cached.pins -= 1
            remaining = self._remaining[block] = self._still_needed(block) - decoded
            if cached.pins == 0 and remaining <= 0:
                self._drop(block)
                del self._remaining[block]  # otherwise an endless epoch would fill it

    def evict_one(self) -> bool:
        """Drop a block that can be read again, for the next block; return False if none is waiting for space.

        The scheduler calls this when the next block finds no space and nothing in progress will free any.
        """
        if not self._queue:
            return False
        for number, block in self._cached.items():
            if block.state == READY and block.pins == 0:
                self._drop(number)
                self.rereads += 1
                return True
        need = self._block_source.block_bytes(self._queue[0])
        raise SettingError(
            f"a block of {need} bytes does not fit into an arena of {self._arena.size}",
            stage="read",
            advice="Give more memory, or pack the shards: a compressed shard must fit in one piece",
        )

    def _still_needed(self, block: int) -> int:
        remaining = self._remaining.get(block)
        return self._uses(block) if remaining is None else remaining

    def _drop(self, block: int) -> None:
        self._arena.free(self._cached.pop(block).start)


def _no_uses(block: int) -> int:  # noqa: ARG001
    return 0

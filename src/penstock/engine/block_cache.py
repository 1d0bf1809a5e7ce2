"""Which blocks are in the arena: asked for in the order of need, freed when their last sample is decoded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import NO_BLOCK, NO_BLOCK_START, BlockSource
from penstock.engine.arena import Arena
from penstock.engine.readers import FetchedBlock, Readers
from penstock.errors import SettingError

Ids = NDArray[np.int64]
Uses = Callable[[int], int]
"""How many samples of a block an epoch will take; none of a block that is not of this epoch."""
LOADING, READY = "loading", "ready"
SPARE = 4
"""One request more for each so many reads in flight waits at the readers: none of them idles until we hear of it."""


@dataclass(slots=True)
class _CachedBlock:
    start: int
    length: int
    state: str = LOADING
    pins: int = 0
    """Samples of it that are with a worker now."""


class BlockCache:
    """Owned by the conductor's thread alone; readers report through the conductor's events."""

    def __init__(self, arena: Arena, readers: Readers, supply: BlockSource, in_flight: int) -> None:
        self.in_flight = in_flight
        """How many reads run at a time: the one knob for I/O concurrency."""
        self.loading = 0
        """Blocks requested and not here yet."""
        self.blocked = False
        """Whether the next block waits for room."""
        self.rereads = 0
        self._arena = arena
        self._readers = readers
        self._supply = supply
        self._uses: Uses = _none
        self._left: dict[int, int] = {}
        """Of blocks of this epoch that are decoded in part: samples that are left."""
        self._here: dict[int, _CachedBlock] = {}
        self._wanted: deque[int] = deque()
        self._asked: set[int] = set()

    def begin(self, uses: Uses) -> None:
        """A new epoch: `uses` is how many samples of each block it will take."""
        self._uses = uses
        self._left.clear()
        self._wanted.clear()
        self._asked.clear()
        self.blocked = False
        unused = [block for block, resident in self._here.items() if resident.state == READY and resident.pins == 0]
        for block in unused:
            self._drop(block)

    def want(self, block: int) -> None:
        """Ask for a block unless it is here or asked for."""
        if block not in self._here and block not in self._asked:
            self._wanted.append(block)
            self._asked.add(block)

    def pump(self) -> None:
        """Start as many reads as are allowed and have room."""
        self.blocked = False
        most = self.in_flight + 1 + self.in_flight // SPARE
        while self._wanted and self.loading < most:
            length = self._supply.block_bytes(self._wanted[0])
            start = self._arena.take(length)
            if start is None:
                self.blocked = True
                return
            block = self._wanted.popleft()
            self._asked.discard(block)
            self._here[block] = _CachedBlock(start, length)
            self.loading += 1
            self._readers.request(block, start, length)

    @property
    def backlog(self) -> int:
        """Blocks asked for and not yet being read."""
        return len(self._wanted)

    @property
    def used_bytes(self) -> int:
        """Of the arena."""
        return self._arena.used

    def arrived(self, fetched: FetchedBlock) -> bool:
        """Note a finished read; whether the block is of use."""
        self.loading -= 1
        resident = self._here[fetched.block]
        resident.state = READY
        if self._still_used(fetched.block) <= 0:  # asked for by an epoch that was given up
            self._drop(fetched.block)
            return False
        return True

    def base(self, block: int) -> int | None:
        """Where the block lies, once it can be read."""
        resident = self._here.get(block)
        return resident.start if resident is not None and resident.state == READY else None

    def pin_all(self, blocks: Ids) -> Ids:
        """Samples of these blocks go to a worker; returns where each one's block lies."""
        return np.array(
            [NO_BLOCK_START if block == NO_BLOCK else self._pin(block) for block in blocks.tolist()], np.int64
        )

    def _pin(self, block: int) -> int:
        resident = self._here[block]
        resident.pins += 1
        return resident.start

    def unpin_all(self, blocks: Ids, *, done: bool) -> None:
        """They come back, decoded or to be tried again."""
        for block in blocks.tolist():
            if block == NO_BLOCK:
                continue
            resident = self._here[block]
            resident.pins -= 1
            left = self._left[block] = self._still_used(block) - done
            if resident.pins == 0 and left <= 0:
                self._drop(block)
                del self._left[block]  # an epoch may be without end

    def make_room(self) -> bool:
        """Nothing moves: the next block finds no room and nobody will free any. Throw out one that can come again."""
        if not self._wanted:
            return False
        for block, resident in self._here.items():
            if resident.state == READY and resident.pins == 0:
                self._drop(block)
                self.rereads += 1
                return True
        need = self._supply.block_bytes(self._wanted[0])
        raise SettingError(
            f"a block of {need} bytes does not fit into an arena of {self._arena.size}",
            stage="read",
            advice="Give more memory, or pack the shards: a compressed shard must fit in one piece",
        )

    def _still_used(self, block: int) -> int:
        left = self._left.get(block)
        return self._uses(block) if left is None else left

    def _drop(self, block: int) -> None:
        self._arena.give_back(self._here.pop(block).start)


def _none(block: int) -> int:  # noqa: ARG001
    return 0

"""Whether bytes that came are those that the index knows the CRC32 of."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import deflate
import numpy as np
from numpy.typing import NDArray

from penstock.data.read.block_layout import Extent
from penstock.shards.index import ShardIndex

SORTED = 64
"""Shards of which the order of the parts is kept."""


class Checksums:
    """Of the parts of shards. For many threads."""

    def __init__(self, indexes: Sequence[ShardIndex]) -> None:
        self._indexes = indexes
        self._order = lru_cache(SORTED)(self._sorted)  # its own lock: blocks are read in several threads

    def damaged(self, shard: int, extents: Sequence[Extent], into: memoryview) -> list[Extent]:
        """Those with a part inside whose CRC32 is another; none where the index knows none."""
        if self._indexes[shard].crcs is None:
            return []
        return [extent for extent in extents if not self._sound(shard, extent, into)]

    def _sound(self, shard: int, extent: Extent, into: memoryview) -> bool:
        index = self._indexes[shard]
        assert index.crcs is not None
        order, end = self._order(shard), extent.offset + extent.length
        first, last = np.searchsorted(index.offsets, (extent.offset, end), sorter=order)
        parts = order[first:last]
        places = index.offsets[parts] - extent.offset + extent.at
        return all(
            at + length > extent.at + extent.length or deflate.crc32(into[at : at + length]) == crc
            for at, length, crc in zip(
                places.tolist(), index.lengths[parts].tolist(), index.crcs[parts].tolist(), strict=True
            )
        )

    def _sorted(self, shard: int) -> NDArray[np.int64]:
        return np.argsort(self._indexes[shard].offsets, kind="stable")

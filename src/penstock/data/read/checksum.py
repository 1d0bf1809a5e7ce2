"""Checks bytes against the CRC32 in the index: of parts, and of the extents of a block that may be read again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import deflate
import numpy as np

from penstock.core.types import Ids
from penstock.data.read.block_layout import NO_CRC, Extent
from penstock.errors import DecodeError
from penstock.shards.index import ShardIndex

MAX_SORTED_SHARDS = 64
"""Shards whose parts are kept sorted by offset."""


def check_crc(pieces: Sequence[memoryview], crc32: int) -> None:
    """Raise a DecodeError unless the bytes of a part, in these pieces, have that CRC32; NO_CRC fits any bytes."""
    if crc32 == NO_CRC:
        return
    found = 0
    for piece in pieces:
        found = deflate.crc32(piece, found)
    if found != crc32:
        raise DecodeError("CRC32 does not match the index", stage="read", advice="Copy the shard again")


class ExtentChecksums:
    """Finds damaged extents by the CRC32 of the parts inside them. May be used by several threads."""

    def __init__(self, indexes: Sequence[ShardIndex]) -> None:
        self._indexes = indexes
        self._order = lru_cache(MAX_SORTED_SHARDS)(self._by_offset)  # an lru_cache may be called by several threads

    def damaged(self, shard: int, extents: Sequence[Extent], into: memoryview) -> list[Extent]:
        """Return the extents that contain a part with a wrong CRC32; none if the index has no CRC32s."""
        if self._indexes[shard].crcs is None:
            return []
        return [extent for extent in extents if not self._is_intact(shard, extent, into)]

    def _is_intact(self, shard: int, extent: Extent, into: memoryview) -> bool:
        index = self._indexes[shard]
        assert index.crcs is not None
        order, end = self._order(shard), extent.offset + extent.length
        first, last = np.searchsorted(index.offsets, (extent.offset, end), sorter=order)
        parts = order[first:last]
        starts = index.offsets[parts] - extent.offset + extent.block_offset
        extent_end = extent.block_offset + extent.length
        return all(
            start + length > extent_end or deflate.crc32(into[start : start + length]) == crc
            for start, length, crc in zip(
                starts.tolist(), index.lengths[parts].tolist(), index.crcs[parts].tolist(), strict=True
            )
        )

    def _by_offset(self, shard: int) -> Ids:
        return np.argsort(self._indexes[shard].offsets, kind="stable")

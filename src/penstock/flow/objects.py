"""Reads blocks of shards that lie in object stores: all their runs of bytes at once, and again what came damaged."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache

import deflate
import numpy as np
from numpy.typing import NDArray

from penstock.flow.extent import Extent
from penstock.shards.index import ShardIndex
from penstock.storage.remote.fetch import Version
from penstock.storage.remote.object import Place, RemoteFile

log = logging.getLogger("penstock")

SORTED = 64
"""Shards of which the order of the parts is kept."""


class ObjectShards:
    """Nothing is opened, and nothing looked at: the store itself compares each request with the index's ETag."""

    def __init__(self, paths: Sequence[str], indexes: Sequence[ShardIndex]) -> None:
        self._paths = paths
        self._indexes = indexes
        self._order = lru_cache(SORTED)(self._sorted)  # its own lock: blocks are read in several threads

    def read(self, shard: int, extents: Sequence[Extent], into: memoryview) -> int:
        """Fetch the extents; returns how many bytes they are. What is damaged after a second try, workers will find."""
        binding = self._indexes[shard].binding
        file = RemoteFile(self._paths[shard], Version(binding.size, binding.etag, binding.mtime_ns))
        count = file.read_all([_place(extent, into) for extent in extents])
        damaged = [extent for extent in extents if not self._sound(shard, extent, into)]
        if damaged:
            log.warning("%s: bytes at %d came damaged; reading them again", file.path, damaged[0].offset)
            count += file.read_all([_place(extent, into) for extent in damaged])
        return count

    def _sound(self, shard: int, extent: Extent, into: memoryview) -> bool:
        """Whether every part inside has the CRC32 that the index knows, if it knows any."""
        index = self._indexes[shard]
        if index.crcs is None:
            return True
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


def _place(extent: Extent, into: memoryview) -> Place:
    return extent.offset, into[extent.at : extent.at + extent.length]

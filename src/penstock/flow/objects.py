"""Reads blocks of shards that lie in object stores: all their runs of bytes at once, and again what came damaged."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock.flow.checksums import Checksums
from penstock.flow.extent import Extent
from penstock.shards.index import ShardIndex
from penstock.storage.remote.fetch import Version
from penstock.storage.remote.object import Place, RemoteFile

log = logging.getLogger("penstock")


class ObjectShards:
    """Nothing is opened, and nothing looked at: the store itself compares each request with the index's ETag."""

    def __init__(self, paths: Sequence[str], indexes: Sequence[ShardIndex]) -> None:
        self._paths = paths
        self._indexes = indexes
        self._checksums = Checksums(indexes)

    def read(self, shard: int, extents: Sequence[Extent], into: memoryview) -> int:
        """Fetch the extents; returns how many bytes they are. What is damaged after a second try, workers will find."""
        binding = self._indexes[shard].binding
        file = RemoteFile(self._paths[shard], Version(binding.size, binding.etag, binding.mtime_ns))
        count = file.read_all([_place(extent, into) for extent in extents])
        damaged = self._checksums.damaged(shard, extents, into)
        if damaged:
            log.warning("%s: bytes at %d came damaged; reading them again", file.path, damaged[0].offset)
            count += file.read_all([_place(extent, into) for extent in damaged])
        return count


def _place(extent: Extent, into: memoryview) -> Place:
    return extent.offset, into[extent.at : extent.at + extent.length]

"""Reads blocks from copies of shards on a fast disk, where there are any: whatever is wrong with one costs only it."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import partial

from penstock.errors import PenstockError
from penstock.flow.checksums import Checksums
from penstock.flow.extent import Extent
from penstock.shards.index import Binding, ShardIndex
from penstock.shards.source import open_shard
from penstock.storage.cache import CachedShard
from penstock.storage.local import fill
from penstock.storage.remote.url import is_remote
from penstock.storage.staging import Source
from penstock.storage.tier import CacheSettings, ShardTier

log = logging.getLogger("penstock")


class CopiedShards:
    """Copies are of the very versions that the indexes are bound to. For many threads."""

    def __init__(self, paths: Sequence[str], indexes: Sequence[ShardIndex], cache: CacheSettings) -> None:
        self._paths = paths
        self._indexes = indexes
        self._checksums = Checksums(indexes)
        sources = [_source(path, index.binding) for path, index in zip(paths, indexes, strict=True)]
        self.tier = ShardTier(cache, sources)

    def read(self, shard: int, extents: Sequence[Extent], into: memoryview) -> int | None:
        """Fetch the extents from the copy; None where there is none that can be trusted."""
        copy = self.tier.open(shard)
        if copy is None:
            return None
        with copy:
            try:
                whole = self._whole(shard, copy, extents, into)
            except (PenstockError, OSError) as error:
                log.warning("%s: its copy in the cache cannot be read (%s)", self._paths[shard], error)
                whole = False
            if whole and not self._checksums.damaged(shard, extents, into):
                return sum(extent.length for extent in extents)
            log.warning("%s: its copy in the cache is not used any more", self._paths[shard])
            self.tier.distrust(shard, copy)
        return None

    def close(self) -> None:
        """No more copies are made."""
        self.tier.close()

    def _whole(self, shard: int, copy: CachedShard, extents: Sequence[Extent], into: memoryview) -> bool:
        if self._indexes[shard].compression is None:
            read = partial(os.preadv, copy.fd)
            places = ((into[extent.at : extent.at + extent.length], extent.offset) for extent in extents)
            return all(fill(read, [place], offset) == len(place) for place, offset in places)
        with open_shard(copy.path) as stream:
            return all(_filled(stream.read_at(extent.offset, extent.length), extent, into) for extent in extents)


def _source(path: str, binding: Binding) -> Source:
    place = path if is_remote(path) else os.path.realpath(path)
    return Source(place, binding.size, binding.mtime_ns, binding.etag)


def _filled(data: bytes, extent: Extent, into: memoryview) -> bool:
    into[extent.at : extent.at + len(data)] = data
    return len(data) == extent.length

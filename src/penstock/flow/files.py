"""Reads runs of bytes of shards, wherever these lie: a copy on a fast disk, a file, an object, a compressed stream."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from penstock.core.layout import PAGE, whole_pages
from penstock.errors import StorageError
from penstock.flow.copies import CopiedShards
from penstock.flow.extent import Extent
from penstock.flow.objects import ObjectShards
from penstock.flow.openfiles import DirectShard, OpenFiles
from penstock.shards.index import ShardIndex
from penstock.shards.source import AnyShard, Shard, open_shard
from penstock.storage.remote.url import is_remote
from penstock.storage.tier import CacheSettings

__all__ = ["Extent", "OpenShards"]


class OpenShards:
    """Reads from several threads."""

    def __init__(
        self,
        paths: Sequence[str],
        indexes: Sequence[ShardIndex],
        *,
        direct: bool = False,
        cache: CacheSettings | None = None,
    ) -> None:
        self._paths = paths
        self._indexes = indexes
        self._objects = ObjectShards(paths, indexes)
        self._direct = direct
        self._cache = cache
        self._copies = None if cache is None else CopiedShards(paths, indexes, cache)
        self.local = OpenFiles(paths, [index.binding for index in indexes], direct=direct)
        """Those that are files and can be read at any place."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process opens for itself."""
        return partial(OpenShards, direct=self._direct, cache=self._cache), (self._paths, self._indexes)

    def read(self, shard: int, extents: Sequence[Extent], into: memoryview) -> int:
        """Fetch the extents; returns how many bytes they are."""
        if self._copies is not None and (count := self._copies.read(shard, extents, into)) is not None:
            return count
        if self._indexes[shard].compression is not None:
            with open_shard(self._paths[shard]) as stream:
                self._indexes[shard].binding.check(stream)
                return sum(_stream(stream, extent, into) for extent in extents)
        if is_remote(self._paths[shard]):
            return self._objects.read(shard, extents, into)
        with self.local.lend(shard) as file:
            return sum(_fetch(file, extent, into) for extent in extents)

    def close(self) -> None:
        """Close what nobody reads; the rest is closed by its last reader."""
        if self._copies is not None:
            self._copies.close()
        self.local.close()


def _stream(stream: AnyShard, extent: Extent, into: memoryview) -> int:
    data = stream.read_at(extent.offset, extent.length)
    into[extent.at : extent.at + len(data)] = data
    return _whole(len(data), extent, stream.path)


def _fetch(file: Shard, extent: Extent, into: memoryview) -> int:
    if isinstance(file, DirectShard) and file.direct_fd >= 0 and _read_direct(file.direct_fd, extent, into):
        return extent.length
    return _pread(file, extent, into)


def _read_direct(fd: int, extent: Extent, into: memoryview) -> bool:
    """Whole pages around the extent; whether that went well. What did not is read again the ordinary way."""
    before = extent.offset % PAGE
    need = before + extent.length
    with into[extent.at - before : extent.at - before + whole_pages(need)] as pages:
        try:
            return os.preadv(fd, [pages], extent.offset - before) >= need
        except OSError:  # not on this file system, or the memory is not aligned; a broken disk will say so again
            return False


def _pread(file: Shard, extent: Extent, into: memoryview) -> int:
    return _whole(file.fill([into[extent.at : extent.at + extent.length]], extent.offset), extent, file.path)


def _whole(count: int, extent: Extent, path: str) -> int:
    if count < extent.length:
        raise StorageError("ends before its index says", shard=path, offset=extent.offset + count, stage="read")
    return count

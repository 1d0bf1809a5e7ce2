"""Reads runs of bytes of shards, wherever these lie: a copy on a fast disk, a file, an object, a compressed stream."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from penstock.core.slab_layout import PAGE, round_up_to_page
from penstock.data.read.block_layout import Extent
from penstock.data.read.checksum import Checksums
from penstock.data.read.open_files import DirectShard, OpenFiles
from penstock.errors import PenstockError, StorageError
from penstock.options import CacheOptions
from penstock.shards.index import IndexBinding, ShardIndex
from penstock.shards.open_shard import AnyShard, PlainShard, open_shard
from penstock.storage.local import read_into_buffers
from penstock.storage.object_store.remote_file import RangeRead, RemoteFile
from penstock.storage.object_store.request import ObjectVersion
from penstock.storage.object_store.url import is_remote
from penstock.storage.shard_cache.cache import CachedShard
from penstock.storage.shard_cache.cache_tier import ShardTier
from penstock.storage.shard_cache.copy import ShardVersion

log = logging.getLogger("penstock")


class ObjectStoreShards:
    """Nothing is opened, and nothing looked at: the store itself compares each request with the index's ETag."""

    def __init__(self, paths: Sequence[str], indexes: Sequence[ShardIndex]) -> None:
        self._paths = paths
        self._indexes = indexes
        self._checksums = Checksums(indexes)

    def read(self, shard: int, extents: Sequence[Extent], into: memoryview) -> int:
        """Fetch the extents; returns how many bytes they are. What is damaged after a second try, workers will find."""
        binding = self._indexes[shard].binding
        file = RemoteFile(self._paths[shard], ObjectVersion(binding.size, binding.etag, binding.mtime_ns))
        count = file.read_ranges([_place(extent, into) for extent in extents])
        damaged = self._checksums.damaged(shard, extents, into)
        if damaged:
            log.warning("%s: bytes at %d came damaged; reading them again", file.path, damaged[0].offset)
            count += file.read_ranges([_place(extent, into) for extent in damaged])
        return count


def _place(extent: Extent, into: memoryview) -> RangeRead:
    return extent.offset, into[extent.at : extent.at + extent.length]


class CachedShards:
    """Copies are of the very versions that the indexes are bound to. For many threads."""

    def __init__(self, paths: Sequence[str], indexes: Sequence[ShardIndex], cache: CacheOptions) -> None:
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
            self.tier.discard(shard, copy)
        return None

    def close(self) -> None:
        """No more copies are made."""
        self.tier.close()

    def _whole(self, shard: int, copy: CachedShard, extents: Sequence[Extent], into: memoryview) -> bool:
        if self._indexes[shard].compression is None:
            read = partial(os.preadv, copy.fd)
            places = ((into[extent.at : extent.at + extent.length], extent.offset) for extent in extents)
            return all(read_into_buffers(read, [place], offset) == len(place) for place, offset in places)
        with open_shard(copy.path) as stream:
            return all(_filled(stream.read_at(extent.offset, extent.length), extent, into) for extent in extents)


def _source(path: str, binding: IndexBinding) -> ShardVersion:
    place = path if is_remote(path) else os.path.realpath(path)
    return ShardVersion(place, binding.size, binding.mtime_ns, binding.etag)


def _filled(data: bytes, extent: Extent, into: memoryview) -> bool:
    into[extent.at : extent.at + len(data)] = data
    return len(data) == extent.length


__all__ = ["Extent", "OpenedShards"]


class OpenedShards:
    """Reads from several threads."""

    def __init__(
        self,
        paths: Sequence[str],
        indexes: Sequence[ShardIndex],
        *,
        direct: bool = False,
        cache: CacheOptions | None = None,
    ) -> None:
        self._paths = paths
        self._indexes = indexes
        self._objects = ObjectStoreShards(paths, indexes)
        self._direct = direct
        self._cache = cache
        self._copies = None if cache is None else CachedShards(paths, indexes, cache)
        self.local = OpenFiles(paths, [index.binding for index in indexes], direct=direct)
        """Those that are files and can be read at any place."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process opens for itself."""
        return partial(OpenedShards, direct=self._direct, cache=self._cache), (self._paths, self._indexes)

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


def _fetch(file: PlainShard, extent: Extent, into: memoryview) -> int:
    if isinstance(file, DirectShard) and file.direct_fd >= 0 and _read_direct(file.direct_fd, extent, into):
        return extent.length
    return _pread(file, extent, into)


def _read_direct(fd: int, extent: Extent, into: memoryview) -> bool:
    """Whole pages around the extent; whether that went well. What did not is read again the ordinary way."""
    before = extent.offset % PAGE
    need = before + extent.length
    with into[extent.at - before : extent.at - before + round_up_to_page(need)] as pages:
        try:
            return os.preadv(fd, [pages], extent.offset - before) >= need
        except OSError:  # not on this file system, or the memory is not aligned; a broken disk will say so again
            return False


def _pread(file: PlainShard, extent: Extent, into: memoryview) -> int:
    return _whole(
        file.read_into_buffers([into[extent.at : extent.at + extent.length]], extent.offset), extent, file.path
    )


def _whole(count: int, extent: Extent, path: str) -> int:
    if count < extent.length:
        raise StorageError("ends before its index says", shard=path, offset=extent.offset + count, stage="read")
    return count

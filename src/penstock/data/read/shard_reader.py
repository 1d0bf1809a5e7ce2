"""Reads extents of shards from wherever they are: a cached copy, a file, an object store, a compressed stream."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from penstock.core.slab_layout import PAGE, round_up_to_page
from penstock.data.read.block_layout import Extent
from penstock.data.read.checksum import ExtentChecksums
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
    """Shards in an object store. Nothing is opened or checked first: the store compares each request's ETag."""

    def __init__(self, paths: Sequence[str], indexes: Sequence[ShardIndex]) -> None:
        self._paths = paths
        self._indexes = indexes
        self._checksums = ExtentChecksums(indexes)

    def read(self, shard: int, extents: Sequence[Extent], into: memoryview) -> int:
        """Fetch the extents and return the bytes fetched.

        Damaged extents are fetched a second time; a part that is damaged after that fails in its worker.
        """
        binding = self._indexes[shard].binding
        file = RemoteFile(self._paths[shard], ObjectVersion(binding.size, binding.etag, binding.mtime_ns))
        count = file.read_ranges([_range_read(extent, into) for extent in extents])
        damaged = self._checksums.damaged(shard, extents, into)
        if damaged:
            log.warning("%s: bytes at %d came damaged; reading them again", file.path, damaged[0].offset)
            count += file.read_ranges([_range_read(extent, into) for extent in damaged])
        return count


def _range_read(extent: Extent, into: memoryview) -> RangeRead:
    return extent.offset, into[extent.block_offset : extent.block_offset + extent.length]


class CachedShards:
    """Copies of shards in the local cache, of exactly the versions that were indexed. For several threads."""

    def __init__(self, paths: Sequence[str], indexes: Sequence[ShardIndex], cache: CacheOptions) -> None:
        self._paths = paths
        self._indexes = indexes
        self._checksums = ExtentChecksums(indexes)
        versions = [_version(path, index.binding) for path, index in zip(paths, indexes, strict=True)]
        self.tier = ShardTier(cache, versions)

    def read(self, shard: int, extents: Sequence[Extent], into: memoryview) -> int | None:
        """Read the extents from the copy and return their bytes; None if there is no copy that is intact."""
        copy = self.tier.open(shard)
        if copy is None:
            return None
        with copy:
            try:
                complete = self._read_copy(shard, copy, extents, into)
            except (PenstockError, OSError) as error:
                log.warning("%s: its copy in the cache cannot be read (%s)", self._paths[shard], error)
                complete = False
            if complete and not self._checksums.damaged(shard, extents, into):
                return sum(extent.length for extent in extents)
            log.warning("%s: its copy in the cache is not used any more", self._paths[shard])
            self.tier.discard(shard, copy)
        return None

    def close(self) -> None:
        """Stop making copies."""
        self.tier.close()

    def _read_copy(self, shard: int, copy: CachedShard, extents: Sequence[Extent], into: memoryview) -> bool:
        """Read the extents, and return whether all their bytes were there."""
        if self._indexes[shard].compression is None:
            read = partial(os.preadv, copy.fd)
            places = [_range_read(extent, into) for extent in extents]
            return all(read_into_buffers(read, [buffer], offset) == len(buffer) for offset, buffer in places)
        with open_shard(copy.path) as stream:
            return all(_copy_into(stream.read_at(extent.offset, extent.length), extent, into) for extent in extents)


def _version(path: str, binding: IndexBinding) -> ShardVersion:
    location = path if is_remote(path) else os.path.realpath(path)
    return ShardVersion(location, binding.size, binding.mtime_ns, binding.etag)


def _copy_into(data: bytes, extent: Extent, into: memoryview) -> bool:
    into[extent.block_offset : extent.block_offset + len(data)] = data
    return len(data) == extent.length


class ShardReader:
    """Reads extents of any shard, called from several threads."""

    def __init__(
        self,
        paths: Sequence[str],
        indexes: Sequence[ShardIndex],
        *,
        direct: bool = False,
        cache: CacheOptions | None = None,
    ) -> None:
        """`direct` reads files around the page cache."""
        self._paths = paths
        self._indexes = indexes
        self._objects = ObjectStoreShards(paths, indexes)
        self._direct = direct
        self._cache = cache
        self._copies = None if cache is None else CachedShards(paths, indexes, cache)
        self.local = OpenFiles(paths, [index.binding for index in indexes], direct=direct)
        """The shards that are uncompressed files."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without open files: another process opens its own."""
        return partial(ShardReader, direct=self._direct, cache=self._cache), (self._paths, self._indexes)

    def read(self, shard: int, extents: Sequence[Extent], into: memoryview) -> int:
        """Read the extents into a block's memory, and return the bytes read."""
        if self._copies is not None and (count := self._copies.read(shard, extents, into)) is not None:
            return count
        if self._indexes[shard].compression is not None:
            with open_shard(self._paths[shard]) as stream:
                self._indexes[shard].binding.check(stream)
                return sum(_read_stream(stream, extent, into) for extent in extents)
        if is_remote(self._paths[shard]):
            return self._objects.read(shard, extents, into)
        with self.local.lease(shard) as file:
            return sum(_read_file(file, extent, into) for extent in extents)

    def close(self) -> None:
        """Close the files that are not in use; each of the others is closed by its last user."""
        if self._copies is not None:
            self._copies.close()
        self.local.close()


def _read_stream(stream: AnyShard, extent: Extent, into: memoryview) -> int:
    data = stream.read_at(extent.offset, extent.length)
    into[extent.block_offset : extent.block_offset + len(data)] = data
    return _check_length(len(data), extent, stream.path)


def _read_file(file: PlainShard, extent: Extent, into: memoryview) -> int:
    if isinstance(file, DirectShard) and file.direct_fd >= 0 and _read_direct(file.direct_fd, extent, into):
        return extent.length
    return _pread(file, extent, into)


def _read_direct(fd: int, extent: Extent, into: memoryview) -> bool:
    """Read whole pages around the extent, and return whether that worked; if not, `_pread` reads the extent."""
    into_page = extent.offset % PAGE
    need = into_page + extent.length
    start = extent.block_offset - into_page
    with into[start : start + round_up_to_page(need)] as pages:
        try:
            return os.preadv(fd, [pages], extent.offset - into_page) >= need
        except OSError:  # unsupported by the file system, or unaligned memory; a broken disk fails again in _pread
            return False


def _pread(file: PlainShard, extent: Extent, into: memoryview) -> int:
    buffer = into[extent.block_offset : extent.block_offset + extent.length]
    return _check_length(file.read_into_buffers([buffer], extent.offset), extent, file.path)


def _check_length(count: int, extent: Extent, path: str) -> int:
    if count < extent.length:
        raise StorageError("ends before its index says", shard=path, offset=extent.offset + count, stage="read")
    return count

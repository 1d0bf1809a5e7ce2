"""Open shards: opened at first use, checked against their index, and only so many at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from penstock.core.layout import PAGE, whole_pages
from penstock.errors import StorageError
from penstock.flow.extent import Extent
from penstock.flow.objects import ObjectShards
from penstock.shards.index import Binding, ShardIndex
from penstock.shards.source import AnyShard, Shard, open_shard
from penstock.storage.remote.url import is_remote

__all__ = ["Extent", "OpenShards"]

MOST_OPEN = 256
"""Opening again costs little beside a block; a process may have 1024 descriptors, and they are not all ours."""
OUR_SHARE = 4
"""Where a process may have fewer, we take one of this many."""

_DIRECT_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_DIRECT", 0)


@dataclass(slots=True, eq=False)
class _Open:
    file: Shard
    users: int = 0
    """Threads that read from it now: it must not be closed under them, its descriptor would become another file's."""


class DirectShard(Shard):
    """A shard that is also read around the page cache, where the file system has that."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        try:
            self.direct_fd = os.open(f"/proc/self/fd/{self.fd}", _DIRECT_FLAGS)  # the very same file
        except OSError:
            self.direct_fd = -1

    def close(self) -> None:
        """Give both descriptors back."""
        super().close()
        if self.direct_fd >= 0:
            os.close(self.direct_fd)
            self.direct_fd = -1


class OpenShards:
    """Reads from several threads; of the shards that nobody reads, those used last stay open."""

    def __init__(self, paths: Sequence[str], indexes: Sequence[ShardIndex], *, direct: bool = False) -> None:
        self._paths = paths
        self._indexes = indexes
        self._objects = ObjectShards(paths, indexes)
        self._direct = direct and hasattr(os, "O_DIRECT")
        self._most = _most_open()
        self._open: dict[int, _Open] = {}  # in the order of last use
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process opens for itself."""
        return partial(OpenShards, direct=self._direct), (self._paths, self._indexes)

    def read(self, shard: int, extents: Sequence[Extent], into: memoryview) -> int:
        """Fetch the extents; returns how many bytes they are."""
        if self._indexes[shard].compression is not None:
            with open_shard(self._paths[shard]) as stream:
                _check(stream, self._indexes[shard].binding)
                return sum(_stream(stream, extent, into) for extent in extents)
        if is_remote(self._paths[shard]):
            return self._objects.read(shard, extents, into)
        with self._borrowed(shard) as file:
            return sum(_fetch(file, extent, into) for extent in extents)

    def close(self) -> None:
        """Close what nobody reads; the rest is closed by its last reader."""
        with self._lock:
            idle = [entry.file for entry in self._open.values() if entry.users == 0]
            self._open.clear()
        for file in idle:
            file.close()

    @contextmanager
    def _borrowed(self, shard: int) -> Iterator[Shard]:
        entry = self._borrow(shard, None) or self._borrow(shard, self._opened(shard))
        assert entry is not None
        try:
            yield entry.file
        finally:
            self._give_back(shard, entry)

    def _borrow(self, shard: int, new: Shard | None) -> _Open | None:
        """The open shard, or `new` as such; opening takes its time on a network, so it happens outside the lock."""
        with self._lock:
            entry = self._open.pop(shard, None) or (_Open(new) if new is not None else None)
            if entry is None:
                return None
            entry.users += 1
            self._open[shard] = entry
            surplus = self._take_surplus()
        if new is not None and entry.file is not new:  # another thread was quicker
            surplus.append(new)
        for file in surplus:
            file.close()
        return entry

    def _give_back(self, shard: int, entry: _Open) -> None:
        with self._lock:
            entry.users -= 1
            closed_meanwhile = self._open.get(shard) is not entry
            surplus = [entry.file] if closed_meanwhile and entry.users == 0 else self._take_surplus()
        for file in surplus:
            file.close()

    def _take_surplus(self) -> list[Shard]:
        """What is too many and in nobody's use, the longest unused first."""
        idle = [shard for shard, entry in self._open.items() if entry.users == 0]
        return [self._open.pop(shard).file for shard in idle[: max(0, len(self._open) - self._most)]]

    def _opened(self, shard: int) -> Shard:
        file = DirectShard(self._paths[shard]) if self._direct else Shard(self._paths[shard])
        try:
            _check(file, self._indexes[shard].binding)
        except StorageError:
            file.close()
            raise
        return file


def _most_open() -> int:
    try:
        import resource
    except ImportError:  # not on Windows
        return MOST_OPEN
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_OPEN if soft == resource.RLIM_INFINITY else max(1, min(MOST_OPEN, soft // OUR_SHARE))


def _check(shard: AnyShard, binding: Binding) -> None:
    if Binding.of(shard) != binding:
        raise StorageError("has changed since it was indexed", shard=shard.path, stage="read", advice="Start again")


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
    done = 0
    while done < extent.length:
        view = into[extent.at + done : extent.at + extent.length]
        count = file.surely(os.preadv, [view], extent.offset + done)
        if count == 0:
            break
        done += count
    return _whole(done, extent, file.path)


def _whole(count: int, extent: Extent, path: str) -> int:
    if count < extent.length:
        raise StorageError("ends before its index says", shard=path, offset=extent.offset + count, stage="read")
    return count

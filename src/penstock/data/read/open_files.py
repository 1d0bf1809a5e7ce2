"""Shards that are open: opened at first use, checked against their index, and only so many at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from penstock.errors import StorageError
from penstock.shards.index import IndexBinding
from penstock.shards.open_shard import PlainShard

MOST_OPEN = 256
"""Opening again costs little beside a block; a process may have 1024 descriptors, and they are not all ours."""
OUR_SHARE = 4
"""Where a process may have fewer, we take one of this many."""

_DIRECT_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_DIRECT", 0)


class DirectShard(PlainShard):
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


@dataclass(slots=True, eq=False)
class _Open:
    file: PlainShard
    users: int = 0
    """Threads that read from it now: it must not be closed under them, its descriptor would become another file's."""


@dataclass(slots=True)
class _FileState:
    """An open file as it looks by now."""

    path: str
    size: int
    mtime_ns: int
    etag: str | None = None


class OpenFiles:
    """For all threads of a process; of the shards that nobody reads, those used last stay open."""

    def __init__(self, paths: Sequence[str], bindings: Sequence[IndexBinding], *, direct: bool = False) -> None:
        self._paths = paths
        self._bindings = bindings
        self._direct = direct and hasattr(os, "O_DIRECT")
        self._most = _most_open()
        self._open: dict[int, _Open] = {}  # in the order of last use
        self._lock = threading.RLock()  # a loader may be garbage in any thread, which then closes

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process opens for itself."""
        return partial(OpenFiles, direct=self._direct), (self._paths, self._bindings)

    def lend(self, shard: int) -> ShardLease:
        """The open shard, for a `with`; whoever has read from it then hears if somebody has written into it since."""
        return ShardLease(self, shard)

    def close(self) -> None:
        """Close what nobody reads; the rest is closed by its last reader."""
        with self._lock:
            idle = [entry.file for entry in self._open.values() if entry.users == 0]
            self._open.clear()
        for file in idle:
            file.close()

    def borrow(self, shard: int) -> _Open:
        """To be given back."""
        with self._lock:
            entry = self._open.pop(shard, None)
            if entry is not None:
                entry.users += 1
                self._open[shard] = entry
                return entry
        return self._add(shard, self._opened(shard))  # outside the lock: on a network it takes its time

    def give_back(self, shard: int, entry: _Open) -> None:
        """Nobody reads from it here any more."""
        with self._lock:
            entry.users -= 1
            closed_meanwhile = self._open.get(shard) is not entry
            surplus = [entry.file] if closed_meanwhile and entry.users == 0 else self._take_surplus()
        for file in surplus:
            file.close()

    def check(self, shard: int, file: PlainShard) -> None:
        """That an open shard is still as it was indexed: else what was read may be neither the old nor the new."""
        facts = file.retry_when_stale(_facts, None, 0)
        if facts.st_mtime_ns != file.mtime_ns or facts.st_size != file.size:
            self._bindings[shard].check(_FileState(file.path, facts.st_size, facts.st_mtime_ns))

    def _add(self, shard: int, new: PlainShard) -> _Open:
        with self._lock:
            entry = self._open.pop(shard, None) or _Open(new)
            entry.users += 1
            self._open[shard] = entry
            surplus = self._take_surplus()
        if entry.file is not new:  # another thread was quicker
            surplus.append(new)
        for file in surplus:
            file.close()
        return entry

    def _take_surplus(self) -> list[PlainShard]:
        """What is too many and in nobody's use, the longest unused first."""
        if len(self._open) <= self._most:  # as after most reads: they come by here thousands of times a second
            return []
        idle = [shard for shard, entry in self._open.items() if entry.users == 0]
        return [self._open.pop(shard).file for shard in idle[: max(0, len(self._open) - self._most)]]

    def _opened(self, shard: int) -> PlainShard:
        file = DirectShard(self._paths[shard]) if self._direct else PlainShard(self._paths[shard])
        try:
            self._bindings[shard].check(file)
        except StorageError:
            file.close()
            raise
        return file


class ShardLease:
    """One use of an open shard."""

    __slots__ = ("_entry", "_files", "_shard")

    def __init__(self, files: OpenFiles, shard: int) -> None:
        self._files = files
        self._shard = shard

    def __enter__(self) -> PlainShard:
        self._entry = self._files.borrow(self._shard)
        return self._entry.file

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self._files.check(self._shard, self._entry.file)
        finally:
            self._files.give_back(self._shard, self._entry)


def _facts(fd: int, wanted: None, offset: int) -> os.stat_result:  # noqa: ARG001
    return os.fstat(fd)


def _most_open() -> int:
    try:
        import resource
    except ImportError:  # not on Windows
        return MOST_OPEN
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_OPEN if soft == resource.RLIM_INFINITY else max(1, min(MOST_OPEN, soft // OUR_SHARE))

"""Open shard files: opened at first use, checked against their index, and only a limited number at a time."""

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

MAX_OPEN_FILES = 256
"""Opening a file again costs little compared with a block. A process usually may have 1024 descriptors, and other code
needs some of them."""
DESCRIPTOR_SHARE = 4
"""One in this many descriptors is used where a process may have few."""

_DIRECT_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_DIRECT", 0)


class DirectShard(PlainShard):
    """A shard that can also be read around the page cache (O_DIRECT), where the file system supports it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        try:
            self.direct_fd = os.open(f"/proc/self/fd/{self.fd}", _DIRECT_FLAGS)  # surely the same file
        except OSError:
            self.direct_fd = -1

    def close(self) -> None:
        """Close both descriptors."""
        super().close()
        if self.direct_fd >= 0:
            os.close(self.direct_fd)
            self.direct_fd = -1


@dataclass(slots=True, eq=False)
class _OpenFile:
    file: PlainShard
    users: int = 0
    """Threads that read from it now. It must not be closed meanwhile: its descriptor would become another file's."""


@dataclass(slots=True)
class _FileState:
    """The state of an open file, as `IndexBinding.check` compares it."""

    path: str
    size: int
    mtime_ns: int
    etag: str | None = None


class OpenFiles:
    """The open files of a process, for all its threads. Of the files not in use, the most recently used stay open."""

    def __init__(self, paths: Sequence[str], bindings: Sequence[IndexBinding], *, direct: bool = False) -> None:
        self._paths = paths
        self._bindings = bindings
        self._direct = direct and hasattr(os, "O_DIRECT")
        self._max_open = _max_open_files()
        self._open: dict[int, _OpenFile] = {}  # in the order of last use
        self._lock = threading.RLock()  # reentrant: a loader's finalizer may run in any thread, and closes the files

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without open files: another process opens its own."""
        return partial(OpenFiles, direct=self._direct), (self._paths, self._bindings)

    def lease(self, shard: int) -> ShardLease:
        """Return a context manager for the open shard. Its end raises a StorageError if the file has changed."""
        return ShardLease(self, shard)

    def close(self) -> None:
        """Close the files that are not in use; each of the others is closed by its last user."""
        with self._lock:
            idle = [entry.file for entry in self._open.values() if entry.users == 0]
            self._open.clear()
        for file in idle:
            file.close()

    def acquire(self, shard: int) -> _OpenFile:
        """Return the open file of a shard, counting a user until `release`."""
        with self._lock:
            entry = self._open.pop(shard, None)
            if entry is not None:
                entry.users += 1
                self._open[shard] = entry
                return entry
        return self._add(shard, self._opened(shard))  # outside the lock: opening over a network takes time

    def release(self, shard: int, entry: _OpenFile) -> None:
        """Count one user less, and close files that are too many."""
        with self._lock:
            entry.users -= 1
            closed_meanwhile = self._open.get(shard) is not entry
            surplus = [entry.file] if closed_meanwhile and entry.users == 0 else self._take_surplus()
        for file in surplus:
            file.close()

    def check(self, shard: int, file: PlainShard) -> None:
        """Raise a StorageError if an open shard is not as it was indexed: bytes read from it may be a mixture."""
        facts = file.retry_when_stale(_facts, None, 0)
        if facts.st_mtime_ns != file.mtime_ns or facts.st_size != file.size:
            self._bindings[shard].check(_FileState(file.path, facts.st_size, facts.st_mtime_ns))

    def _add(self, shard: int, new: PlainShard) -> _OpenFile:
        with self._lock:
            entry = self._open.pop(shard, None) or _OpenFile(new)
            entry.users += 1
            self._open[shard] = entry
            surplus = self._take_surplus()
        if entry.file is not new:  # another thread opened it first
            surplus.append(new)
        for file in surplus:
            file.close()
        return entry

    def _take_surplus(self) -> list[PlainShard]:
        """Remove files that are too many and not in use, the least recently used first."""
        if len(self._open) <= self._max_open:  # the usual case, tested thousands of times a second
            return []
        idle = [shard for shard, entry in self._open.items() if entry.users == 0]
        return [self._open.pop(shard).file for shard in idle[: max(0, len(self._open) - self._max_open)]]

    def _opened(self, shard: int) -> PlainShard:
        file = DirectShard(self._paths[shard]) if self._direct else PlainShard(self._paths[shard])
        try:
            self._bindings[shard].check(file)
        except StorageError:
            file.close()
            raise
        return file


class ShardLease:
    """One use of an open shard, as a context manager."""

    __slots__ = ("_entry", "_files", "_shard")

    def __init__(self, files: OpenFiles, shard: int) -> None:
        self._files = files
        self._shard = shard

    def __enter__(self) -> PlainShard:
        self._entry = self._files.acquire(self._shard)
        return self._entry.file

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self._files.check(self._shard, self._entry.file)
        finally:
            self._files.release(self._shard, self._entry)


def _facts(fd: int, buffer: None, offset: int) -> os.stat_result:  # noqa: ARG001
    """Call fstat, with the arguments that `PlainShard.retry_when_stale` passes."""
    return os.fstat(fd)


def _max_open_files() -> int:
    try:
        import resource
    except ImportError:  # on Windows
        return MAX_OPEN_FILES
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_OPEN_FILES if soft == resource.RLIM_INFINITY else max(1, min(MAX_OPEN_FILES, soft // DESCRIPTOR_SHARE))

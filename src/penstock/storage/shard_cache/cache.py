"""A cache that copies shards of a slow storage into a fast directory, within a budget of bytes.

Several jobs may share the directory safely.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from penstock.errors import SettingError, StorageError
from penstock.storage.object_store.url import is_remote
from penstock.storage.shard_cache.copy import CacheFallback, ShardVersion, copy_verified
from penstock.storage.shard_cache.directory import CacheDirectory, is_copy_of

_LOG = logging.getLogger(__name__)
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Counters of one `ShardCache` since it was created. Every job counts for itself."""

    hits: int
    misses: int
    staged: int
    staged_bytes: int
    evicted: int
    evicted_bytes: int
    fallbacks: Mapping[CacheFallback, int]
    """How often a copy was not possible, by reason; those shards were read from where they lie."""


@dataclass(frozen=True, slots=True)
class CachedShard:
    """An open shard. Read it through `fd`: the file stays readable even when another job evicts its name."""

    path: Path
    fd: int
    size_bytes: int
    from_cache: bool

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ShardCache:
    """A cache in a directory: `with cache.open(path) as shard:` opens the copy if possible, else `path` itself.

    The least recently used shards are evicted first. If shards are read in turn and do not all fit, every read is a
    miss: choose a budget that holds an epoch's shards, or stage only those that fit.
    """

    def __init__(self, directory: str | Path, budget_bytes: int) -> None:
        if budget_bytes <= 0:
            raise SettingError(f"a cache needs a budget above 0 bytes, not {budget_bytes}", stage="cache")
        self._counts: Counter[str] = Counter()
        self._fallbacks: Counter[CacheFallback] = Counter()
        self._counting = threading.Lock()
        self._files = CacheDirectory(Path(directory), budget_bytes, self._evicted)

    def open(self, path: str | Path) -> CachedShard:
        """Open a shard: its copy if there is one or it can be copied now, else the shard itself."""
        source = ShardVersion.of(path)
        shard = self.open_copy(source)
        if shard is None and self.copy_in(source) is None:
            shard = self._open_entry(source)  # another job may have evicted it already
        return shard or _open_direct(source)

    def stage(self, path: str | Path) -> bool:
        """Copy a shard before its use; return whether it is in the cache now."""
        source = ShardVersion.of(path)
        return self._files.has_copy(source) or self.copy_in(source) is None

    def open_copy(self, source: ShardVersion) -> CachedShard | None:
        """Open the copy of exactly this version of a shard; None if there is none."""
        shard = self._open_entry(source)
        self._count(**{"misses" if shard is None else "hits": 1})
        return shard

    def copy_in(self, source: ShardVersion, stopped: Callable[[], bool] | None = None) -> CacheFallback | None:
        """Copy this version of a shard unless the cache has it; return None on success, else the reason."""
        if source.size_bytes > self._files.budget_bytes:
            return self._fall_back(CacheFallback.TOO_LARGE, source)
        try:
            claim = self._files.claim(source)
            if claim is None:
                return None
            if isinstance(claim, CacheFallback):
                return self._fall_back(claim, source)
            try:
                failure = copy_verified(source, claim.part, stopped)
                if failure is not None:
                    return self._fall_back(failure, source)
                self._files.publish(claim, source)
            finally:
                claim.release()
        except OSError as error:
            return self._fall_back(CacheFallback.of(error), source, error)
        self._count(staged=1, staged_bytes=source.size_bytes)
        return None

    def discard(self, source: ShardVersion, copy: CachedShard) -> None:
        """Remove a damaged copy, so that no later job uses it."""
        with contextlib.suppress(OSError):  # the directory is read-only, or another job has removed it
            self._files.remove(source, os.fstat(copy.fd))

    def stats(self) -> CacheStats:
        """Return the counters."""
        names = ("hits", "misses", "staged", "staged_bytes", "evicted", "evicted_bytes")
        with self._counting:
            numbers = {name: self._counts[name] for name in names}
            return CacheStats(**numbers, fallbacks=MappingProxyType(dict(self._fallbacks)))

    def _open_entry(self, source: ShardVersion) -> CachedShard | None:
        entry = self._files.entry(source)
        try:
            fd = os.open(entry, _READ_FLAGS | getattr(os, "O_NOFOLLOW", 0))
        except OSError:  # missing or unusable: copying will report why
            return None
        if not is_copy_of(source, os.fstat(fd)):
            os.close(fd)
            return None
        with contextlib.suppress(OSError):  # copies in a read-only directory can still be read
            os.utime(entry)
        return CachedShard(entry, fd, source.size_bytes, from_cache=True)

    def _evicted(self, size_bytes: int) -> None:
        self._count(evicted=1, evicted_bytes=size_bytes)

    def _count(self, **amounts: int) -> None:
        with self._counting:
            self._counts.update(amounts)

    def _fall_back(self, reason: CacheFallback, source: ShardVersion, error: OSError | None = None) -> CacheFallback:
        """Count a failed copy, and log it once per reason."""
        with self._counting:
            self._fallbacks[reason] += 1
            first = self._fallbacks[reason] == 1
        if first:
            # Two jobs that want one shard at the same time are normal; the other reasons deserve attention.
            level = logging.INFO if reason in (CacheFallback.BUSY, CacheFallback.STOPPED) else logging.WARNING
            detail = f" ({error})" if error else ""
            _LOG.log(level, "%s%s; reading %s from where it lies (logged once)", reason, detail, source.path)
        return reason


def _open_direct(source: ShardVersion) -> CachedShard:
    if is_remote(source.path):
        raise StorageError(
            "cannot be copied into the cache now, and an object cannot be opened as a file",
            shard=source.path,
            stage="cache",
            advice="Give the cache enough space for it, or read the URL itself",
        )
    try:
        fd = os.open(source.path, _READ_FLAGS)
    except OSError as error:
        raise StorageError(f"cannot open the shard: {error}", shard=source.path, stage="cache") from error
    return CachedShard(Path(source.path), fd, os.fstat(fd).st_size, from_cache=False)

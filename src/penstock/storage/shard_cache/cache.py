"""Shards of a slow storage, staged to a fast directory within a byte budget; shared safely by many jobs."""

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
    """What one `ShardCache` did since it was made. The jobs beside it count for themselves."""

    hits: int
    misses: int
    staged: int
    staged_bytes: int
    evicted: int
    evicted_bytes: int
    fallbacks: Mapping[CacheFallback, int]
    """How often staging was not possible, by reason; those shards were read where they lie."""


@dataclass(frozen=True, slots=True)
class CachedShard:
    """An open shard. Read through `fd`: the file stays readable even when another job evicts its name."""

    path: Path
    fd: int
    size_bytes: int
    from_cache: bool

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ShardCache:
    """`with cache.open(path) as shard:` reads from the fast directory when it can, else from `path` itself.

    Least recently used shards go out first. With shards that are read in turn and do not all fit, that makes
    every read a miss: give a budget that holds an epoch's shards, or stage only those that fit.
    """

    def __init__(self, directory: str | Path, budget_bytes: int) -> None:
        if budget_bytes <= 0:
            raise SettingError(f"a cache needs a budget above 0 bytes, not {budget_bytes}", stage="cache")
        self._counts: Counter[str] = Counter()
        self._fallbacks: Counter[CacheFallback] = Counter()
        self._counting = threading.Lock()
        self._files = CacheDirectory(Path(directory), budget_bytes, self._evicted)

    def open(self, path: str | Path) -> CachedShard:
        """The shard, from the cache where it is there or can be staged now."""
        source = ShardVersion.of(path)
        shard = self.open_copy(source)
        if shard is None and self.copy_in(source) is None:
            shard = self._open_entry(source)  # another job may have evicted it already
        return shard or _open_direct(source)

    def stage(self, path: str | Path) -> bool:
        """Bring a shard in ahead of its use; whether it is in the cache now."""
        source = ShardVersion.of(path)
        return self._files.has_copy(source) or self.copy_in(source) is None

    def open_copy(self, source: ShardVersion) -> CachedShard | None:
        """The copy of that very version of a shard, if there is one now."""
        shard = self._open_entry(source)
        self._count(**{"misses" if shard is None else "hits": 1})
        return shard

    def copy_in(self, source: ShardVersion, stopped: Callable[[], bool] | None = None) -> CacheFallback | None:
        """Copy that version of a shard, unless it is there; None is success, else the reason why it is not there."""
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
        """Let go of a copy that is not what it should be, so that no later job trusts it."""
        with contextlib.suppress(OSError):  # a read-only directory, or another was quicker
            self._files.remove(source, os.fstat(copy.fd))

    def stats(self) -> CacheStats:
        """The counters so far."""
        names = ("hits", "misses", "staged", "staged_bytes", "evicted", "evicted_bytes")
        with self._counting:
            numbers = {name: self._counts[name] for name in names}
            return CacheStats(**numbers, fallbacks=MappingProxyType(dict(self._fallbacks)))

    def _open_entry(self, source: ShardVersion) -> CachedShard | None:
        entry = self._files.entry(source)
        try:
            fd = os.open(entry, _READ_FLAGS | getattr(os, "O_NOFOLLOW", 0))
        except OSError:  # not there, or not usable: staging will find out why
            return None
        if not is_copy_of(source, os.fstat(fd)):
            os.close(fd)
            return None
        with contextlib.suppress(OSError):  # a read-only directory still serves
            os.utime(entry)
        return CachedShard(entry, fd, source.size_bytes, from_cache=True)

    def _evicted(self, size_bytes: int) -> None:
        self._count(evicted=1, evicted_bytes=size_bytes)

    def _count(self, **amounts: int) -> None:
        with self._counting:
            self._counts.update(amounts)

    def _fall_back(self, reason: CacheFallback, source: ShardVersion, error: OSError | None = None) -> CacheFallback:
        """Count it, and say it once per reason."""
        with self._counting:
            self._fallbacks[reason] += 1
            first = self._fallbacks[reason] == 1
        if first:
            # Two jobs that want one shard at once is how it should be; everything else is worth a look.
            level = logging.INFO if reason in (CacheFallback.BUSY, CacheFallback.STOPPED) else logging.WARNING
            detail = f" ({error})" if error else ""
            _LOG.log(level, "%s%s; reading %s where it lies (said once)", reason, detail, source.path)
        return reason


def _open_direct(source: ShardVersion) -> CachedShard:
    if is_remote(source.path):
        raise StorageError(
            "cannot be staged now, and an object cannot be opened where it lies",
            shard=source.path,
            stage="cache",
            advice="Give the cache room for it, or read the URL itself",
        )
    try:
        fd = os.open(source.path, _READ_FLAGS)
    except OSError as error:
        raise StorageError(f"cannot open the shard: {error}", shard=source.path, stage="cache") from error
    return CachedShard(Path(source.path), fd, os.fstat(fd).st_size, from_cache=False)

"""A shard cache that is filled in the background while shards are read from where they lie: no read waits for a copy.

Copies are files, so the kernel's page cache holds what was read of them last. Only the first shards of the list that
fit into the cache are copied: if a cache that is too small evicted the least recently used shards, an epoch would find
none of the copies that the last one had made.
"""

from __future__ import annotations

import logging
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.options import CacheOptions
from penstock.storage.mounts import nearest_existing_path
from penstock.storage.shard_cache.cache import CachedShard, CacheStats, ShardCache
from penstock.storage.shard_cache.copy import CacheFallback, ShardVersion
from penstock.storage.shard_cache.directory import CacheDirectory

log = logging.getLogger("penstock")

STAGING_THREADS = 4
"""Shards copied at a time, with four requests in flight each, beside the 16 to 32 reads that training waits for. If the
copies get half of the bandwidth of a saturated store, the first epoch takes 2 (1 - 1/e) = 1.26 times as long, and after
two epochs everything is copied."""
RETRY_AFTER_S = 5.0
"""Seconds until a shard is tried again that another rank or job was copying, or for which there was no space."""
DISK_RETRY_AFTER_S = 60.0
"""Seconds until any copy is tried again after the cache's disk was full or broken."""
DISK_SHARE = 0.8
"""Fraction of the free space on the cache's disk that is used if the user sets no limit."""
STOP_TIMEOUT_S = 1.5
"""Seconds that unfinished copies get to stop; a thread that is still in a request ends after it, and cleans up then."""

_TEMPORARY_REASONS = frozenset({CacheFallback.BUSY, CacheFallback.LOCKED, CacheFallback.NO_SPACE})
_DISK_REASONS = frozenset({CacheFallback.FULL, CacheFallback.READ_ONLY, CacheFallback.BROKEN})


def cache_budget(options: CacheOptions) -> int:
    """Return how many bytes the cache may hold.

    Without `max_bytes` what it holds already counts as free space, so that the budget stays the same while it fills.
    """
    if options.max_bytes is not None:
        return options.max_bytes
    folder = Path(options.folder)
    free = shutil.disk_usage(nearest_existing_path(folder)).free
    return max(1, int(DISK_SHARE * (free + CacheDirectory(folder, 1, lambda _: None).used_bytes())))


class ShardTier:
    """The copies of a list of shards. A copy that does not exist yet is made in the background. Thread-safe."""

    def __init__(
        self, options: CacheOptions, sources: Sequence[ShardVersion], now: Callable[[], float] = time.monotonic
    ) -> None:
        budget = cache_budget(options)
        self._cache = ShardCache(os.path.abspath(options.folder), budget)
        self._sources = _shards_that_fit(sources, budget)
        """The shards that are copied, by their number in the list."""
        self._now = now
        self._lock = threading.Lock()
        self._pending: set[int] = set()
        """Shards that are queued or being copied."""
        self._retry_at_s: dict[int, float] = {}
        """Time before which a shard is not tried again."""
        self._disk_retry_at_s = 0.0
        """Time before which no shard is tried."""
        self._threads: _StagingThreads | None = None
        cached_bytes = sum(source.size_bytes for source in self._sources.values())
        log.info("cache: %d of %d shards (%.1f GB) fit into it", len(self._sources), len(sources), cached_bytes / 1e9)

    def open(self, shard: int) -> CachedShard | None:
        """Return the open copy of a shard, which the caller closes; None, and request a copy, if there is none yet."""
        source = self._sources.get(shard)
        if source is None:
            return None
        copy = self._cache.open_copy(source)
        if copy is None:
            self._request_copy(shard)
        return copy

    def discard(self, shard: int, copy: CachedShard) -> None:
        """Remove a copy that is unreadable or damaged; from now on the shard is read from where it lies."""
        with self._lock:
            source = self._sources.pop(shard, None)
        if source is not None:
            self._cache.discard(source, copy)

    def stats(self) -> CacheStats:
        """Return the counters of this process."""
        return self._cache.stats()

    def close(self) -> None:
        """Stop unfinished copies. The next shard without a copy starts the threads again."""
        with self._lock:
            threads, self._threads = self._threads, None
            self._pending.clear()
        if threads is not None:
            threads.stop()

    def _request_copy(self, shard: int) -> None:
        now = self._now()
        with self._lock:
            too_early = now < max(self._disk_retry_at_s, self._retry_at_s.get(shard, 0.0))
            if too_early or shard in self._pending or shard not in self._sources:
                return
            self._pending.add(shard)
            if self._threads is None:
                self._threads = _StagingThreads(self._stage)
            self._threads.wanted.put(shard)

    def _stage(self, shard: int, threads: _StagingThreads) -> None:
        source = self._sources.get(shard)
        reason = None if source is None else self._cache.copy_in(source, threads.stopped.is_set)
        with self._lock:
            if self._threads is threads:
                self._pending.discard(shard)
            if reason in _TEMPORARY_REASONS:
                self._retry_at_s[shard] = self._now() + RETRY_AFTER_S
            elif reason in _DISK_REASONS:
                self._disk_retry_at_s = self._now() + DISK_RETRY_AFTER_S
            elif reason not in (None, CacheFallback.STOPPED):
                self._sources.pop(shard, None)


class _StagingThreads:
    """Threads that copy the requested shards until they are stopped."""

    def __init__(self, stage: Callable[[int, _StagingThreads], None]) -> None:
        self.wanted: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        """Numbers of the requested shards; None ends one thread."""
        self.stopped = threading.Event()
        self._stage = stage
        self._threads = [
            threading.Thread(target=self._serve, name=f"penstock-cache-{number}", daemon=True)
            for number in range(STAGING_THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let the threads end, and join them with a timeout."""
        self.stopped.set()
        for _ in self._threads:
            self.wanted.put(None)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for thread in self._threads:
            if thread is not threading.current_thread():  # a finalizer may run in any thread
                thread.join(max(0.0, deadline - time.monotonic()))

    def _serve(self) -> None:
        while (shard := self.wanted.get()) is not None and not self.stopped.is_set():
            try:
                self._stage(shard, self)
            except Exception:  # reading continues without the cache
                log.warning("a shard could not be put into the cache", exc_info=True)


def _shards_that_fit(sources: Sequence[ShardVersion], budget: int) -> dict[int, ShardVersion]:
    """Return the first shards that fit, by number; the result is the same on every rank with the same list."""
    fitting: dict[int, ShardVersion] = {}
    for number, source in enumerate(sources):
        if source.size_bytes <= budget:
            fitting[number] = source
            budget -= source.size_bytes
    return fitting

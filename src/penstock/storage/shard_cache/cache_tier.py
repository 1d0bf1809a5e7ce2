"""A cache of shards on a fast disk, filled aside while they are read where they lie: nobody waits for a copy.

Above it is memory: copies are files, and the kernel's page cache holds what was read of them last. Only as many
shards are kept as fit, the first of the list: with a cache that is too small, and least recently used shards going out,
an epoch would find nothing of what the last one had left.
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
"""Shards copied at a time, with four requests in flight each, beside 16 to 32 that training waits for. Where they get
half of a store that is full, the first epoch takes 2 (1 - 1/e) = 1.26 times as long, and after two all is copied."""
RETRY_AFTER_S = 5.0
"""Until a shard is tried again that another rank or job was at, or for which there was no room."""
DISK_RETRY_AFTER_S = 60.0
"""Until anything is tried again after the cache's disk was full or broken."""
DISK_SHARE = 0.8
"""Of the room on its disk, taken where nobody has said how much."""
STOP_TIMEOUT_S = 1.5
"""For copies under way to stop; a thread that is still in a request ends after it, and cleans up then."""

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
    """Gives the copy of a shard where there is one; where there is none, has it made for later. For many threads."""

    def __init__(
        self, options: CacheOptions, sources: Sequence[ShardVersion], now: Callable[[], float] = time.monotonic
    ) -> None:
        budget = cache_budget(options)
        self._cache = ShardCache(os.path.abspath(options.folder), budget)
        self._sources = _shards_that_fit(sources, budget)
        """Those that are kept, by number."""
        self._now = now
        self._lock = threading.Lock()
        self._under_way: set[int] = set()
        self._retry_at_s: dict[int, float] = {}
        self._disk_retry_at_s = 0.0
        self._threads: _StagingThreads | None = None
        kept = sum(source.size_bytes for source in self._sources.values())
        log.info("cache: %d of %d shards (%.1f GB) fit into it", len(self._sources), len(sources), kept / 1e9)

    def open(self, shard: int) -> CachedShard | None:
        """Its copy, to be closed after use; None where there is none yet."""
        source = self._sources.get(shard)
        if source is None:
            return None
        found = self._cache.open_copy(source)
        if found is None:
            self._request_copy(shard)
        return found

    def discard(self, shard: int, copy: CachedShard) -> None:
        """That copy could not be read, or not as it should be: it goes, and the shard is read where it lies now."""
        with self._lock:
            source = self._sources.pop(shard, None)
        if source is not None:
            self._cache.discard(source, copy)

    def stats(self) -> CacheStats:
        """What the cache did for us so far."""
        return self._cache.stats()

    def close(self) -> None:
        """Copies under way are given up; the next shard that is missing starts it all again."""
        with self._lock:
            crew, self._threads = self._threads, None
            self._under_way.clear()
        if crew is not None:
            crew.stop()

    def _request_copy(self, shard: int) -> None:
        now = self._now()
        with self._lock:
            resting = now < max(self._disk_retry_at_s, self._retry_at_s.get(shard, 0.0))
            if resting or shard in self._under_way or shard not in self._sources:
                return
            self._under_way.add(shard)
            if self._threads is None:
                self._threads = _StagingThreads(self._stage)
            self._threads.wanted.put(shard)

    def _stage(self, shard: int, crew: _StagingThreads) -> None:
        source = self._sources.get(shard)
        reason = None if source is None else self._cache.copy_in(source, crew.stopped.is_set)
        with self._lock:
            if self._threads is crew:
                self._under_way.discard(shard)
            if reason in _TEMPORARY_REASONS:
                self._retry_at_s[shard] = self._now() + RETRY_AFTER_S
            elif reason in _DISK_REASONS:
                self._disk_retry_at_s = self._now() + DISK_RETRY_AFTER_S
            elif reason not in (None, CacheFallback.STOPPED):
                self._sources.pop(shard, None)


class _StagingThreads:
    """Threads that stage what is wanted, until they are stopped."""

    def __init__(self, stage: Callable[[int, _StagingThreads], None]) -> None:
        self.wanted: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self.stopped = threading.Event()
        self._stage = stage
        self._threads = [
            threading.Thread(target=self._serve, name=f"penstock-cache-{number}", daemon=True)
            for number in range(STAGING_THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Come to an end soon."""
        self.stopped.set()
        for _ in self._threads:
            self.wanted.put(None)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for thread in self._threads:
            if thread is not threading.current_thread():  # a finalizer may run anywhere
                thread.join(max(0.0, deadline - time.monotonic()))

    def _serve(self) -> None:
        while (shard := self.wanted.get()) is not None and not self.stopped.is_set():
            try:
                self._stage(shard, self)
            except Exception:  # reading goes on without the cache
                log.warning("a shard could not be put into the cache", exc_info=True)


def _shards_that_fit(sources: Sequence[ShardVersion], budget: int) -> dict[int, ShardVersion]:
    """By number, the first ones that fit; the same on every rank that has the same list."""
    fitting: dict[int, ShardVersion] = {}
    for number, source in enumerate(sources):
        if source.size_bytes <= budget:
            fitting[number] = source
            budget -= source.size_bytes
    return fitting

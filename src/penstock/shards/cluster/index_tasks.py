"""Indexes shards by tasks, a handful each, where the shards are near. The indexes stay there: only counts come back."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from penstock.errors import PenstockError
from penstock.shards.index import index_path_beside
from penstock.shards.scan import SCAN_THREADS, ScannedShard, index_shards
from penstock.shards.task_pool import run_tasks
from penstock.storage.object_store.url import is_remote

log = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True)
class IndexedShard:
    """What became of one shard."""

    shard: str
    samples: int
    parts: int
    rebuilt: bool
    """Whether the headers were walked now, rather than read from a stored index."""
    error: Exception | None

    @classmethod
    def of(cls, scanned: ScannedShard) -> IndexedShard:
        """The counts of an index, without the index."""
        if scanned.index is None:
            return cls(scanned.shard, 0, 0, False, scanned.error)
        return cls(scanned.shard, len(scanned.index), scanned.index.part_count, scanned.rebuilt, None)


def index_by_tasks(
    shards: Sequence[str], *, rebuild: bool = False, threads: int = SCAN_THREADS, workers: int | None = None
) -> Iterator[IndexedShard]:
    """Each shard's outcome as it is known, errors as outcomes; a task walks `threads` shards side by side."""
    handfuls = (tuple(shards[first : first + threads]) for first in range(0, len(shards), threads))
    for done in run_tasks(partial(_index_group, rebuild=rebuild), handfuls, workers):
        if done.result is not None:
            yield from done.result
        else:
            yield from (IndexedShard(shard, 0, 0, False, _error_for_shard(done.error, shard)) for shard in done.task)


def _index_group(shards: Sequence[str], rebuild: bool) -> list[IndexedShard]:
    found = [IndexedShard.of(scanned) for scanned in index_shards(shards, rebuild=rebuild, threads=len(shards))]
    for indexed in found:
        if indexed.rebuilt and not is_remote(indexed.shard) and not index_path_beside(indexed.shard).exists():
            log.warning("%s: cannot be written beside: its index lies in the cache of one node only", indexed.shard)
    return found


def _error_for_shard(error: Exception | None, shard: str) -> Exception | None:
    """The crash of a task speaks of each of its shards."""
    return type(error)(error.reason, shard=shard) if isinstance(error, PenstockError) else error

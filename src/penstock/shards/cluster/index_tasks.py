"""Indexes shards in tasks, so that other processes or nodes do the work; only counts are returned, not the indexes."""

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
    """The result of indexing one shard: its counts, or an error."""

    shard: str
    samples: int
    parts: int
    rebuilt: bool
    """Whether the headers were scanned, rather than the index loaded from its file."""
    error: Exception | None

    @classmethod
    def of(cls, scanned: ScannedShard) -> IndexedShard:
        """Return the counts of a shard's index."""
        if scanned.index is None:
            return cls(scanned.shard, 0, 0, False, scanned.error)
        return cls(scanned.shard, len(scanned.index), scanned.index.part_count, scanned.rebuilt, None)


def index_by_tasks(
    shards: Sequence[str], *, rebuild: bool = False, threads: int = SCAN_THREADS, workers: int | None = None
) -> Iterator[IndexedShard]:
    """Yield the result of each shard as it becomes known, errors included; a task indexes `threads` shards at once."""
    groups = (tuple(shards[first : first + threads]) for first in range(0, len(shards), threads))
    for outcome in run_tasks(partial(_index_group, rebuild=rebuild), groups, workers):
        if outcome.result is not None:
            yield from outcome.result
        else:
            for shard in outcome.task:
                yield IndexedShard(shard, 0, 0, False, _error_for_shard(outcome.error, shard))


def _index_group(shards: Sequence[str], rebuild: bool) -> list[IndexedShard]:
    """Index the shards of one task; log a warning for an index that other nodes cannot read."""
    indexed_shards = [
        IndexedShard.of(scanned) for scanned in index_shards(shards, rebuild=rebuild, threads=len(shards))
    ]
    for indexed in indexed_shards:
        if indexed.rebuilt and not is_remote(indexed.shard) and not index_path_beside(indexed.shard).exists():
            log.warning(
                "%s: its folder cannot be written, so its index is only in the cache of one node", indexed.shard
            )
    return indexed_shards


def _error_for_shard(error: Exception | None, shard: str) -> Exception | None:
    """Return the error of a whole task as the error of one of its shards."""
    return type(error)(error.reason, shard=shard) if isinstance(error, PenstockError) else error

"""Penstock with default settings. The index is stored beside the shards in the store."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import torch  # noqa: F401  Penstock imports it to deliver batches; imports are not timed

from benchmarks.peers.task import Batch, MakeBatches
from benchmarks.store.task import Task
from penstock import Array, Loader
from penstock.shards.scan import index_shard


def prepare(task: Task) -> MakeBatches:
    """Index the shards, once for all runs."""
    with ThreadPoolExecutor(task.size.shards) as pool:
        list(pool.map(index_shard, task.s3))

    def make_batches() -> Iterable[Batch]:
        return Loader(task.s3, {"array": Array(".npy")}, task.size.batch_size, num_workers=task.workers or None)

    return make_batches

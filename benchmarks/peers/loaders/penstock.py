"""Penstock with default settings. The index is stored beside the shards, as it is after any first epoch."""

from __future__ import annotations

from collections.abc import Iterable

import torch  # noqa: F401  Penstock imports it to deliver batches; imports are not timed

from benchmarks.peers.task import Batch, MakeBatches, Task
from penstock import Loader
from penstock.shards.scan import index_shard


def prepare(task: Task) -> MakeBatches:
    """Index the shards, once for all runs, as other loaders convert them once."""
    for shard in task.shards:
        index_shard(shard)

    def make_batches() -> Iterable[Batch]:
        return Loader(task.shards, task.kind.fields, task.batch_size, num_workers=task.workers or None)

    return make_batches

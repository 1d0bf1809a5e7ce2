"""Ourselves, with default settings. The index lies beside the shards, as it does from the first epoch on."""

from __future__ import annotations

from collections.abc import Iterable

import torch  # noqa: F401  what delivery imports; imports are not timed, for anybody

from benchmarks.peers.task import Batch, MakeBatches, Task
from penstock import Loader
from penstock.shards.scan import index_shard


def prepare(task: Task) -> MakeBatches:
    """Indexes the shards, once for all runs, as other contestants convert them once."""
    for shard in task.shards:
        index_shard(shard)

    def make_batches() -> Iterable[Batch]:
        return Loader(task.shards, task.kind.fields, task.batch_size, num_workers=task.workers or None)

    return make_batches

"""webdataset on the same shards, which it reads from their URLs with curl; the workers make whole batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import webdataset as wds

from benchmarks.peers.task import Batch, MakeBatches
from benchmarks.store.task import Task, stacked

PREFETCH = 4


def prepare(task: Task) -> MakeBatches:
    def make_batches() -> Iterable[Batch]:
        samples = wds.WebDataset(task.http, shardshuffle=False)
        batches = samples.batched(task.size.batch_size, collation_fn=_batch, partial=True)
        return wds.WebLoader(batches, batch_size=None, num_workers=task.workers, prefetch_factor=PREFETCH)  # type: ignore[no-any-return]

    return make_batches


def _batch(samples: Sequence[dict[str, Any]]) -> Batch:
    return stacked((sample["__key__"], sample["npy"]) for sample in samples)

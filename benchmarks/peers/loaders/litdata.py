"""litdata on chunks of its own format with the same bytes as the shards; the conversion is not timed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from litdata import StreamingDataLoader, StreamingDataset, optimize

from benchmarks.peers.data import converted, samples_in
from benchmarks.peers.decode import TO_ARRAYS, Tensors, as_tensors
from benchmarks.peers.kinds import Kind
from benchmarks.peers.task import Batch, MakeBatches, Task

PREFETCH = 4
CHUNK = "64MB"


def prepare(task: Task) -> MakeBatches:
    folder = converted(task.shards, "litdata", partial(_convert, task))
    os.environ.setdefault("LITDATA_DISABLE_VERSION_CHECK", "1")  # the check would query the package index

    def make_batches() -> Iterable[Batch]:
        return StreamingDataLoader(
            Decoded(task, folder),
            batch_size=task.batch_size,
            num_workers=task.workers,
            prefetch_factor=PREFETCH,
            persistent_workers=True,
        )

    return make_batches


class Decoded(StreamingDataset):  # type: ignore[misc]
    def __init__(self, task: Task, folder: Path) -> None:
        super().__init__(input_dir=str(folder), shuffle=False, drop_last=False)
        self._task = task

    def __getitem__(self, index: Any) -> Tensors:
        item = super().__getitem__(index)
        return as_tensors(item.pop("key"), TO_ARRAYS[self._task.decoder](self._task.kind, item))


def _convert(task: Task, folder: Path) -> None:
    optimize(
        partial(_items, task.kind),
        inputs=task.shards,
        output_dir=str(folder),
        chunk_bytes=CHUNK,
        num_workers=1,
        verbose=False,
    )


def _items(kind: Kind, shard: str) -> Iterator[dict[str, Any]]:
    for key, parts in samples_in(kind, shard):
        yield {"key": key, **parts}

"""The field reports' loader: tarfile as a stream, parts paired in a dict, Pillow, `np.load`, torch's DataLoader.

Their shuffle buffer of decoded samples and their limit on workers are left out, because both would only slow it down.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from benchmarks.peers.data import Parts
from benchmarks.peers.decode import TO_ARRAYS, Tensors, as_tensors
from benchmarks.peers.task import Batch, MakeBatches, Task

PREFETCH = 4


def prepare(task: Task) -> MakeBatches:
    def make_batches() -> Iterable[Batch]:
        return DataLoader(
            StreamingTars(task),
            batch_size=task.batch_size,
            num_workers=task.workers,
            prefetch_factor=PREFETCH,
            persistent_workers=True,
            worker_init_fn=_one_thread,
        )

    return make_batches


class StreamingTars(IterableDataset[Tensors]):
    """Streams shards; of n workers each reads every n-th shard."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def __iter__(self) -> Iterator[Tensors]:
        worker = get_worker_info()
        shards = self._task.shards
        for shard in shards if worker is None else shards[worker.id :: worker.num_workers]:
            yield from self._samples(shard)

    def _samples(self, shard: str) -> Iterator[Tensors]:
        kind, to_arrays = self._task.kind, TO_ARRAYS[self._task.decoder]
        incomplete: dict[str, Parts] = {}
        with tarfile.open(shard, "r|*") as tar:
            for member in tar:
                key, suffix = kind.split(member.name)
                content = tar.extractfile(member)
                assert content is not None
                parts = incomplete.setdefault(key, {})
                parts[suffix] = content.read()
                if len(parts) == len(kind.suffixes):
                    yield as_tensors(key, to_arrays(kind, incomplete.pop(key)))


def _one_thread(_worker: int) -> None:
    torch.set_num_threads(1)

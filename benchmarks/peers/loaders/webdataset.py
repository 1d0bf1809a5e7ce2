"""webdataset as its documentation shows it: the workers make whole batches, which a WebLoader delivers.

Its own decoder is `.decode("pil")`, which opens images, NPZ, JSON and class files; our decode functions are called by
`.map`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import webdataset as wds
from torch.utils.data import default_collate

from benchmarks.peers.decode import Tensors, as_tensors, assemble, decode_with_penstock
from benchmarks.peers.kinds import Kind
from benchmarks.peers.task import Batch, MakeBatches, Task

PREFETCH = 4


def prepare(task: Task) -> MakeBatches:
    def make_batches() -> Iterable[Batch]:
        samples = wds.WebDataset(task.shards, shardshuffle=False, rename_files=partial(_renamed, task.kind))
        if task.decoder == "own":
            samples = samples.decode("pil")
        batches = samples.map(partial(_tensors, task.kind, task.decoder)).batched(
            task.batch_size, collation_fn=default_collate, partial=True
        )
        return wds.WebLoader(batches, batch_size=None, num_workers=task.workers, prefetch_factor=PREFETCH)  # type: ignore[no-any-return]

    return make_batches


def _renamed(kind: Kind, member: str) -> str:
    """Rename `1_features.npz` to `1._features.npz`, because webdataset's key ends at the first dot."""
    key, suffix = kind.split(member)
    return f"{key}.{suffix.removeprefix('.')}"


def _tensors(kind: Kind, decoder: str, sample: dict[str, Any]) -> Tensors:
    values = {suffix: sample[suffix.removeprefix(".")] for suffix in kind.suffixes}
    return as_tensors(sample["__key__"], (assemble if decoder == "own" else decode_with_penstock)(kind, values))

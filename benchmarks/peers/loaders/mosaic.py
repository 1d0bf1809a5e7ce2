"""MosaicML Streaming on its own MDS shards with the same bytes; the conversion is not timed."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from torch.utils.data import DataLoader

from benchmarks.peers.data import converted, samples_in
from benchmarks.peers.decode import TO_ARRAYS, Tensors, as_tensors
from benchmarks.peers.task import Batch, MakeBatches, Task

PREFETCH = 4
IMPORTED_BUT_UNUSED: dict[str, tuple[str, ...]] = {
    "torchvision": (),
    "torchvision.datasets": ("VisionDataset",),
    "torchvision.transforms": (),
    "torchvision.transforms.functional": ("to_tensor",),
    "transformers": (),
    "transformers.feature_extraction_utils": ("BatchFeature",),
    "transformers.models": (),
    "transformers.models.auto": (),
    "transformers.models.auto.tokenization_auto": ("AutoTokenizer",),
    "transformers.tokenization_utils_base": ("BatchEncoding",),
}
"""Modules and names that streaming imports for its ready-made text and image datasets. They are replaced by empty ones,
because torchvision has no wheel for torch without CUDA."""


def _add_empty_modules(modules: dict[str, tuple[str, ...]]) -> None:
    for module, names in modules.items():
        empty = ModuleType(module)
        for name in names:
            setattr(empty, name, type(name, (), {}))
        sys.modules.setdefault(module, empty)


_add_empty_modules(IMPORTED_BUT_UNUSED)

from streaming import MDSWriter, StreamingDataset  # noqa: E402  the empty modules must exist first
from streaming.base.util import clean_stale_shared_memory  # noqa: E402


def prepare(task: Task) -> MakeBatches:
    folder = converted(task.shards, "mosaic", partial(_convert, task))
    clean_stale_shared_memory()

    def make_batches() -> Iterable[Batch]:
        return DataLoader(
            Decoded(task, folder),
            batch_size=task.batch_size,
            num_workers=task.workers,
            prefetch_factor=PREFETCH,
            persistent_workers=True,
        )

    return make_batches


class Decoded(StreamingDataset):  # type: ignore[misc]
    def __init__(self, task: Task, folder: Path) -> None:
        super().__init__(local=str(folder), shuffle=False, batch_size=task.batch_size, num_canonical_nodes=1)
        self._task = task

    def __getitem__(self, at: Any) -> Tensors:
        item = super().__getitem__(at)
        return as_tensors(item.pop("key"), TO_ARRAYS[self._task.decoder](self._task.kind, item))


def _convert(task: Task, folder: Path) -> None:
    columns = {"key": "str", **dict.fromkeys(task.kind.suffixes, "bytes")}
    with MDSWriter(out=str(folder), columns=columns, progress_bar=False) as out:
        for shard in task.shards:
            for key, parts in samples_in(task.kind, shard):
                out.write({"key": key, **parts})

"""Shards for torch's own DataLoader: a map-style dataset and an iterable dataset."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from penstock.core.types import TENSOR_DTYPES, Ids
from penstock.data.decode.decoder import Transform
from penstock.data.fields.base import Field
from penstock.data.fields.image import Image
from penstock.data.order.ranks import RankShare, find_ranks
from penstock.data.sources.base import add_location
from penstock.data.sources.shard_groups import ShardGroup
from penstock.data.sources.shards import OrderSettings, SampleFunctions, ShardSource
from penstock.errors import PenstockError, SettingError
from penstock.options import BLOCK_BYTES, LANES
from penstock.storage.paths import expand_shard_paths

Shards = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


class ShardDataset(Dataset[dict[str, Any]]):
    """Random access by index, for samplers: `ShardDataset(shards, fields)[7]` is a dict of tensors.

    The samples of a batch are read block by block in the order of their position, so sorted or clustered indices
    cost fewer reads than scattered ones.
    """

    def __init__(self, shards: Shards, fields: Mapping[str, Field], *, transform: Transform | None = None) -> None:
        source = ShardSource(
            [ShardGroup(expand_shard_paths(shards))], fields, OrderSettings(), SampleFunctions(transform)
        )
        self._reader = _SampleReader(source)

    @property
    def source(self) -> ShardSource:
        """The source of its samples, with which a caller can read some of their parts without decoding the others."""
        return self._reader.source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        return self.__getitems__([number])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the samples of a batch; DataLoader calls this with all their indices."""
        numbers = np.asarray(indices, np.int64)
        order = np.argsort(numbers, kind="stable")
        by_place = dict(zip(order.tolist(), self._reader.read(numbers[order], epoch=0), strict=True))
        return [by_place[place] for place in range(len(numbers))]


class ShardStream(IterableDataset[dict[str, Any]]):
    """Sequential access, for DataLoader's workers: every sample once over all ranks and workers.

    All workers of all ranks divide the lanes of the epoch's order as the ranks of a `Loader` do. No worker is without
    samples if there are more samples than workers, and their shares differ by one at most.
    """

    def __init__(
        self,
        shards: Shards,
        fields: Mapping[str, Field],
        *,
        shuffle: bool = False,
        seed: int = 0,
        transform: Transform | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self._ranks = find_ranks(rank, world_size)
        order = OrderSettings(shuffle, seed, LANES, BLOCK_BYTES)
        source = ShardSource([ShardGroup(expand_shard_paths(shards))], fields, order, SampleFunctions(transform))
        self._reader = _SampleReader(source)
        self._epoch = 0

    def __len__(self) -> int:
        ranks = self._ranks
        return len(range(ranks.rank, len(self._reader.source), ranks.world_size))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; with persistent workers, set it before the first one."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        share = self._share()
        order = self._reader.source.order(self._epoch)
        samples = order.share(0, len(order), share)
        return self._reader.read(samples, self._epoch)

    def _share(self) -> RankShare:
        worker = get_worker_info()
        if worker is None:
            return self._ranks
        ranks = self._ranks
        return RankShare(ranks.rank + ranks.world_size * worker.id, ranks.world_size * worker.num_workers)


class _SampleReader:
    """Reads and decodes samples in the calling process, which may be a worker of torch's DataLoader."""

    def __init__(self, source: ShardSource) -> None:
        for name, field in source.fields.items():
            if isinstance(field, Image) and (field.gpu_transform is not None or field.decode != "cpu"):
                raise SettingError(
                    f"{name}: gpu_transform and decode work on a Loader's batches", advice="Use penstock.Loader"
                )
        self.source = source
        self._decoder = source.decoder()

    def read(self, samples: Ids, epoch: int) -> Iterator[dict[str, Any]]:
        """Yield each sample in turn; a block is held until the last of these samples that needs it."""
        block_source = self.source.block_source
        blocks = block_source.blocks_of(samples)
        remaining = dict(zip(*(column.tolist() for column in np.unique(blocks, return_counts=True)), strict=True))
        held: dict[int, memoryview] = {}
        for sample, block in zip(samples.tolist(), blocks.tolist(), strict=True):
            if block not in held:
                held[block] = memoryview(bytearray(block_source.block_bytes(block)))
                block_source.read_block(block, held[block])
            yield self._decode(sample, held[block], epoch)
            remaining[block] -= 1
            if remaining[block] == 0:
                del held[block]

    def _decode(self, sample: int, memory: memoryview, epoch: int) -> dict[str, Any]:
        number = np.array([sample], np.int64)
        zero = np.zeros(1, np.int64)
        row = self.source.block_source.task_rows(number, zero, zero)[0].tolist()
        try:
            values = self._decoder.sample(row, epoch, memory)
        except PenstockError as error:
            add_location(error, sample, self.source)
            raise
        tensors = self.source.as_bfloat16({name: _as_tensor(value) for name, value in values.items()})
        return {**tensors, "__key__": self.source.keys(number)[0]}


def _as_tensor(value: Any) -> Any:
    """Return an array as a tensor; one that no tensor can hold, and any other value, is returned as it is."""
    if not isinstance(value, np.ndarray | np.generic) or value.dtype.newbyteorder("=") not in TENSOR_DTYPES:
        return value
    return torch.from_numpy(np.array(value, value.dtype.newbyteorder("=")))

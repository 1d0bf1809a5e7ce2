"""Shards for people who keep torch's DataLoader: a map-style dataset and an iterable one over the same feed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from penstock.core.slab_layout import SlabLayout
from penstock.core.types import Ids
from penstock.data.decode.decoder import Decoder, Transform
from penstock.data.fields.base import Field
from penstock.data.fields.image import Image
from penstock.data.order.ranks import RankShare, find_ranks
from penstock.data.sources.base import add_location
from penstock.data.sources.shard_groups import ShardGroup
from penstock.data.sources.shards import OrderSettings, ShardSource
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
        self._source = _Samples(
            ShardSource([ShardGroup(expand_shard_paths(shards))], fields, OrderSettings(), transform, "raise")
        )

    @property
    def feed(self) -> ShardSource:
        """Where its samples lie, for whoever reads a part of them without decoding the rest."""
        return self._source.feed

    def __len__(self) -> int:
        return len(self._source.feed)

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        return self.__getitems__([number])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """What DataLoader calls with the indices of a whole batch."""
        numbers = np.asarray(indices, np.int64)
        order = np.argsort(numbers, kind="stable")
        found = dict(zip(order.tolist(), self._source.read(numbers[order], epoch=0), strict=True))
        return [found[place] for place in range(len(numbers))]


class ShardStream(IterableDataset[dict[str, Any]]):
    """Sequential access, for DataLoader's workers: every sample once over all ranks and workers.

    Ranks × workers share the epoch's order as the ranks of a `Loader` do: each takes every n-th sample, so no worker is
    empty while there are more samples than workers, and their shares differ by one at most.
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
        self._ranks = find_ranks(rank, world_size, LANES)
        order = OrderSettings(shuffle, seed, LANES, BLOCK_BYTES)
        self._source = _Samples(
            ShardSource([ShardGroup(expand_shard_paths(shards))], fields, order, transform, "raise")
        )
        self._epoch = 0

    def __len__(self) -> int:
        ranks = self._ranks
        return len(range(ranks.rank, len(self._source.feed), ranks.world_size))

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the next pass delivers; with persistent workers, set it before the first pass."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        share = self._share()
        mine = self._source.feed.order(self._epoch)[share.rank :: share.world_size]
        return self._source.read(mine, self._epoch)

    def _share(self) -> RankShare:
        worker = get_worker_info()
        if worker is None:
            return self._ranks
        ranks = self._ranks
        return RankShare(ranks.rank + ranks.world_size * worker.id, ranks.world_size * worker.num_workers)


class _Samples:
    """Decodes samples where it stands: in whatever process torch has put us."""

    def __init__(self, feed: ShardSource) -> None:
        for name, field in feed.fields.items():
            if isinstance(field, Image) and (field.gpu_transform is not None or field.decode != "cpu"):
                told = f"{name}: gpu_transform and decode work on a Loader's batches"
                raise SettingError(told, advice="Use penstock.Loader")
        self.feed = feed
        self._decoder = Decoder(feed.fields, SlabLayout({}, 1), feed.order_settings.seed, feed.transform)

    def read(self, samples: Ids, epoch: int) -> Iterator[dict[str, Any]]:
        """Each sample in turn; a block is held until the last of these samples that needs it."""
        block_source = self.feed.block_source
        blocks = block_source.blocks_of(samples)
        left = dict(zip(*(column.tolist() for column in np.unique(blocks, return_counts=True)), strict=True))
        held: dict[int, memoryview] = {}
        for sample, block in zip(samples.tolist(), blocks.tolist(), strict=True):
            if block not in held:
                held[block] = memoryview(bytearray(block_source.block_bytes(block)))
                block_source.read_block(block, held[block])
            yield self._decode(sample, held[block], epoch)
            left[block] -= 1
            if left[block] == 0:
                del held[block]

    def _decode(self, sample: int, memory: memoryview, epoch: int) -> dict[str, Any]:
        number = np.array([sample], np.int64)
        zero = np.zeros(1, np.int64)
        row = self.feed.block_source.task_rows(number, zero, zero)[0].tolist()
        try:
            values = self._decoder.sample(row, epoch, memory)
        except PenstockError as error:
            add_location(error, sample, self.feed)
            raise
        tensors = {
            name: torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray | np.generic) else value
            for name, value in values.items()
        }
        return {**tensors, "__key__": self.feed.keys(number)[0]}

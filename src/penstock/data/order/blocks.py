"""Cuts shards into blocks: contiguous runs of samples of a few MB, one read each (or one per run of bytes)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.shards.index import ShardIndex

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class BlockTable:
    """Blocks over all shards, as columns. Samples are numbered through: shard after shard, in index order."""

    first_samples: Ids
    """First sample of each block; one entry more than there are blocks, so block b is [b]:[b + 1]."""
    shards: Ids
    """The shard each block lies in."""

    def __len__(self) -> int:
        return len(self.shards)

    @property
    def counts(self) -> Ids:
        """Samples per block."""
        return np.diff(self.first_samples)


def cut_blocks(sizes: Sequence[NDArray[np.int64]], whole_shards: Sequence[bool], block_bytes: int) -> BlockTable:
    """`sizes` are the bytes of each sample, shard by shard; a shard that cannot be cut (compressed) is one block."""
    firsts: list[Ids] = []
    shards: list[Ids] = []
    start = 0
    for number, (of_shard, whole) in enumerate(zip(sizes, whole_shards, strict=True)):
        if len(of_shard) == 0:
            continue
        at = np.zeros(1, np.int64) if whole else _cuts(of_shard, block_bytes)
        firsts.append(at + start)
        shards.append(np.full(len(at), number, np.int64))
        start += len(of_shard)
    end = np.array([start], np.int64)
    return BlockTable(np.concatenate([*firsts, end]), np.concatenate(shards) if shards else np.zeros(0, np.int64))


def _cuts(sizes: NDArray[np.int64], block_bytes: int) -> Ids:
    """Where blocks start: the sample in whose middle the next multiple of `block_bytes` falls opens a new one."""
    middles = np.cumsum(sizes) - sizes / 2
    numbers = (middles // block_bytes).astype(np.int64)
    return np.flatnonzero(np.diff(numbers, prepend=-1)).astype(np.int64)


def sample_sizes(index: ShardIndex) -> NDArray[np.int64]:
    """Bytes of each sample, all parts together."""
    return np.bincount(index.sample_ids, index.lengths, len(index)).astype(np.int64)

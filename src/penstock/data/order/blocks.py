"""Cuts shards into blocks: contiguous runs of samples, a few MB long. A block is read in one read, or a few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.core.types import Ids
from penstock.shards.index import ShardIndex


@dataclass(frozen=True)
class BlockTable:
    """Blocks over all shards, as columns. Samples are numbered over all shards, in the order of their indexes."""

    first_samples: Ids
    """First sample of each block, with one entry more than there are blocks: block b has samples [b]:[b + 1]."""
    shards: Ids
    """The shard that each block belongs to."""

    def __len__(self) -> int:
        return len(self.shards)

    @property
    def counts(self) -> Ids:
        """Samples per block."""
        return np.diff(self.first_samples)


def cut_blocks(sizes: Sequence[Ids], whole_shards: Sequence[bool], block_bytes: int) -> BlockTable:
    """Cut shards into blocks of about `block_bytes`.

    `sizes` are the bytes of each sample, shard by shard. A shard flagged in `whole_shards` is one block: a compressed
    shard can only be read from its start.
    """
    firsts: list[Ids] = []
    shards: list[Ids] = []
    start = 0
    for number, (shard_sizes, whole) in enumerate(zip(sizes, whole_shards, strict=True)):
        if len(shard_sizes) == 0:
            continue
        offsets = np.zeros(1, np.int64) if whole else _block_starts(shard_sizes, block_bytes)
        firsts.append(offsets + start)
        shards.append(np.full(len(offsets), number, np.int64))
        start += len(shard_sizes)
    end = np.array([start], np.int64)
    return BlockTable(np.concatenate([*firsts, end]), np.concatenate(shards) if shards else np.zeros(0, np.int64))


def _block_starts(sizes: Ids, block_bytes: int) -> Ids:
    """Return the first sample of each block: samples are grouped by the multiple of `block_bytes` below their middles.

    So a block has at most `block_bytes` plus the size of its largest sample.
    """
    middles = np.cumsum(sizes) - sizes / 2
    numbers = (middles // block_bytes).astype(np.int64)
    return np.flatnonzero(np.diff(numbers, prepend=-1)).astype(np.int64)


def sample_sizes(index: ShardIndex) -> Ids:
    """Return the bytes of each sample, all its parts together."""
    return np.bincount(index.sample_ids, index.lengths, len(index)).astype(np.int64)

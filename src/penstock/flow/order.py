"""The order of an epoch, before anything is read: a pure function of (seed, epoch, blocks, lanes).

Blocks are permuted and dealt to a fixed number of lanes; inside a block the samples are shuffled; the global order
takes one sample from each lane in turn. So at any moment as many blocks are in use as there are lanes, every read is a
whole block, no buffer of decoded data is needed to shuffle, and the sample at any position is known without reading:
resuming is arithmetic. Rank r of R takes every R-th sample, which are those of lanes r, r + R, …: on any number of
ranks that divides the lanes, step t holds the same samples and a block is read by one rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.errors import SettingError
from penstock.flow.blocks import BlockTable

LANES = 64
"""Divisible by every usual number of ranks up to 64; with blocks of 2 MiB, 128 MiB are in use."""

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ranks:
    """Who we are among those that share an epoch."""

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise SettingError(f"rank {self.rank} is not below world size {self.world_size}")


def epoch_order(blocks: BlockTable, *, seed: int, epoch: int, lanes: int = LANES, shuffle: bool = True) -> Ids:
    """The number of every sample, in the order of the epoch, over all ranks."""
    total = int(blocks.first_samples[-1])
    if not shuffle:
        return np.arange(total, dtype=np.int64)
    rng = np.random.Generator(np.random.PCG64([seed, epoch]))
    dealt = rng.permutation(len(blocks))
    lane_of_block = _deal(blocks.counts[dealt], lanes)
    return _interleave(blocks, dealt, lane_of_block, rng.random(total, dtype=np.float32))


def _deal(counts: Ids, lanes: int) -> Ids:
    """Blocks to lanes in turn, so that all lanes run out at nearly the same time."""
    return np.arange(len(counts), dtype=np.int64) % lanes


def _interleave(blocks: BlockTable, dealt: Ids, lane_of_block: Ids, dice: NDArray[np.float32]) -> Ids:
    """Samples by (place in their lane, lane): one from each lane in turn, lanes that are empty left out."""
    counts = blocks.counts[dealt]
    by_lane = np.argsort(lane_of_block, kind="stable")  # lane after lane, each in the order it was dealt
    counts, lane = counts[by_lane], lane_of_block[by_lane]
    starts = blocks.first_samples[dealt[by_lane]]
    turn = np.repeat(np.arange(len(counts)), counts)  # for each sample, its block's turn in this arrangement
    ends = np.cumsum(counts)
    samples = np.arange(len(turn)) - (ends - counts)[turn] + starts[turn]
    shuffled = samples[np.lexsort((dice[samples], turn))]  # inside each block
    lane_of_sample = lane[turn]
    lane_starts = np.searchsorted(lane_of_sample, lane_of_sample)
    place = np.arange(len(turn)) - lane_starts
    return shuffled[np.lexsort((lane_of_sample, place))]

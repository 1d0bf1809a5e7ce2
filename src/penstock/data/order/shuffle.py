"""The order of an epoch, before anything is read: a pure function of (seed, epoch, blocks, lanes).

Blocks are permuted and dealt to a fixed number of lanes, each to the emptiest; inside a block the samples are shuffled;
the global order takes one sample from each lane in turn. So at any moment as many blocks are in use as there are lanes,
every read is a whole block, no buffer of decoded data is needed to shuffle, and the sample at any position is known
without reading: resuming is arithmetic. Rank r of R takes every R-th sample, which are those of lanes r, r + R, …: on
any number of ranks that divides the lanes, step t holds the same samples and a block is read by one rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapreplace

import numpy as np
from numpy.typing import NDArray

from penstock.data.order.blocks import BlockTable
from penstock.errors import SettingError
from penstock.options import LANES

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RankShare:
    """Who we are among those that share an epoch."""

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise SettingError(f"rank {self.rank} is not below world size {self.world_size}")


def epoch_order(blocks: BlockTable, *, seed: int, epoch: int, lanes: int = LANES, shuffle: bool = True) -> Ids:
    """The number of every sample, in the order of the epoch, over all ranks."""
    if not shuffle:
        return np.arange(int(blocks.first_samples[-1]), dtype=np.int64)
    rng = np.random.Generator(np.random.PCG64([seed, epoch]))
    dealt = rng.permutation(len(blocks))
    counts = blocks.counts[dealt]
    return interleave(shuffle_inside(blocks, dealt, rng), np.repeat(deal(counts, empty_lanes(lanes)), counts))


def shuffle_inside(blocks: BlockTable, dealt: Ids, rng: np.random.Generator) -> Ids:
    """The samples of these blocks, block after block, those of each block in random order."""
    counts = blocks.counts[dealt]
    turn = np.repeat(np.arange(len(counts)), counts)
    samples = np.arange(len(turn)) + (blocks.first_samples[dealt] - np.cumsum(counts) + counts)[turn]
    shuffled: Ids = samples[np.lexsort((rng.random(len(turn), dtype=np.float32), turn))]
    return shuffled


def empty_lanes(lanes: int) -> list[tuple[int, int]]:
    """(samples so far, lane), as a heap."""
    return [(0, lane) for lane in range(lanes)]


def deal(counts: Ids, heap: list[tuple[int, int]]) -> Ids:
    """Each block to the lane with the fewest samples so far, which is the one that will be free first.

    So lanes run out within one block of each other, whatever the sizes. `heap` goes on from here in the next call.
    """
    lanes = np.empty(len(counts), np.int64)
    for place, count in enumerate(counts.tolist()):
        load, lane = heap[0]
        lanes[place] = lane
        heapreplace(heap, (load + count, lane))
    return lanes


def interleave(samples: Ids, lane: Ids) -> Ids:
    """One sample from each lane in turn, lanes that are empty left out; inside a lane the samples stay as they come."""
    by_lane = np.argsort(lane, kind="stable")
    samples, lane = samples[by_lane], lane[by_lane]
    return samples[np.lexsort((lane, places(lane)))]


def places(group: Ids) -> Ids:
    """For each entry of a sorted column, how many of its like come before it."""
    return np.arange(len(group)) - np.searchsorted(group, group)

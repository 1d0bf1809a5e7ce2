"""The order of an epoch, before anything is read: a pure function of (seed, epoch, blocks, lanes).

Blocks are permuted and dealt to a fixed number of lanes, each to the lane with the fewest samples; inside a block the
samples are shuffled; the global order takes one sample from each lane in turn. So at any moment as many blocks are in
use as there are lanes, every read is a whole block, no buffer of decoded samples is needed for shuffling, and the
sample at any position is known without reading, so that resuming is arithmetic. `lanes` divides it between ranks.
"""

from __future__ import annotations

from heapq import heapreplace

import numpy as np

from penstock.core.types import Ids
from penstock.data.order.blocks import BlockTable
from penstock.data.order.lanes import EpochOrder
from penstock.options import LANES


def epoch_order(blocks: BlockTable, *, seed: int, epoch: int, lanes: int = LANES, shuffle: bool = True) -> EpochOrder:
    """Return the number of every sample, in the order of the epoch, over all ranks."""
    if not shuffle:
        return EpochOrder(np.arange(int(blocks.first_samples[-1]), dtype=np.int64), lanes=1)
    rng = np.random.Generator(np.random.PCG64([seed, epoch]))
    block_order = rng.permutation(len(blocks))
    counts = blocks.counts[block_order]
    samples = shuffle_within_blocks(blocks, block_order, rng)
    return interleave(samples, np.repeat(deal(counts, empty_lanes(lanes)), counts), lanes)


def shuffle_within_blocks(blocks: BlockTable, block_order: Ids, rng: np.random.Generator) -> Ids:
    """Return the samples of these blocks, block after block, those of each block in random order."""
    counts = blocks.counts[block_order]
    turn = np.repeat(np.arange(len(counts)), counts)
    samples = np.arange(len(turn)) + (blocks.first_samples[block_order] - np.cumsum(counts) + counts)[turn]
    shuffled: Ids = samples[np.lexsort((rng.random(len(turn), dtype=np.float32), turn))]
    return shuffled


def empty_lanes(lanes: int) -> list[tuple[int, int]]:
    """Return (samples so far, lane) of each lane, as a heap."""
    return [(0, lane) for lane in range(lanes)]


def deal(counts: Ids, heap: list[tuple[int, int]]) -> Ids:
    """Return a lane for each block: the one with the fewest samples so far, which will be the first to need a block.

    So the lanes end within one block of each other, whatever the sizes. `heap` is updated for the next call.
    """
    lanes = np.empty(len(counts), np.int64)
    for turn, count in enumerate(counts.tolist()):
        load, lane = heap[0]
        lanes[turn] = lane
        heapreplace(heap, (load + count, lane))
    return lanes


def interleave(samples: Ids, lane: Ids, lanes: int) -> EpochOrder:
    """Take one sample from each of the lanes in turn, leaving out empty lanes; each lane's samples keep their order."""
    by_lane = np.argsort(lane, kind="stable")
    samples, lane = samples[by_lane], lane[by_lane]
    in_turn = np.lexsort((lane, count_equal_before(lane)))
    whole_rounds = int(np.bincount(lane, minlength=lanes).min())
    return EpochOrder(samples[in_turn], lanes, lane[in_turn[whole_rounds * lanes :]])


def count_equal_before(values: Ids) -> Ids:
    """Return, for each entry of a sorted array, how many equal entries come before it."""
    return np.arange(len(values)) - np.searchsorted(values, values)

"""Compares the quality of shuffles: Penstock's, webdataset's buffer in the same memory, a full shuffle and none.

Only the orders are computed; no data is read.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from webdataset.filters import shuffle as buffer_shuffle

from benchmarks.result import Line, Table
from penstock.core.types import Ids
from penstock.data.order.blocks import BlockTable, cut_blocks
from penstock.data.order.shuffle import epoch_order
from penstock.options import BLOCK_BYTES, LANES

SHARDS, PER_SHARD, SAMPLE_BYTES = 1000, 1281, 110_000
DECODED_BYTES = 3 * 224 * 224
"""Bytes of a decoded sample, which a shuffle buffer behind the decoder has to hold."""
BATCH = 256
DISPLACEMENT_TARGET = 0.99
SHARDS_TARGET = 10.0
NOTE = (
    "Displacement is the mean distance between a sample's position in the epoch and its position in the shards, as a "
    "share of the epoch: one third in a full shuffle, and in any order that deals out shards or blocks at random. "
    "Shuffles differ in which samples share a batch. A buffer that follows a stream of shards mixes the few shards "
    "that pass through it together. Lanes mix as many random places of the dataset as there are lanes, in the same "
    "memory, and read each place as one block. In return a batch has about four samples of each block in use, so that "
    "it has somewhat more pairs from one block than with a buffer."
)


@dataclass(frozen=True)
class Quality:
    """Measures of an order."""

    displacement: float
    """Mean distance between the positions in the epoch and in the shards, as a share of the epoch."""
    shards_per_batch: float
    same_shard: float
    """Share of the pairs in a batch whose samples are from one shard."""
    same_block: float
    """Share of the pairs in a batch whose samples are from one block."""


def imagenet_like() -> BlockTable:
    """Return the blocks of 1.28 million samples in 1000 shards, of which only the sizes are made."""
    rng = np.random.default_rng(0)
    sizes = [(SAMPLE_BYTES * rng.lognormal(-0.125, 0.5, PER_SHARD)).astype(np.int64) for _ in range(SHARDS)]
    return cut_blocks(sizes, [False] * SHARDS, BLOCK_BYTES)


def webdataset_order(samples: int, buffer: int) -> Ids:
    """Return the sample numbers in the order of shuffled shards and webdataset's own buffer."""
    rng = random.Random(0)
    shards = list(range(SHARDS))
    rng.shuffle(shards)
    stream = (shard * PER_SHARD + at for shard in shards for at in range(PER_SHARD))
    return np.fromiter(buffer_shuffle(buffer, rng=rng)(stream), np.int64, samples)


def judge(order: Ids, blocks: BlockTable) -> Quality:
    """Measure an order; a last, shorter batch is left out."""
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    displacement = np.abs(position - np.arange(len(order))).mean() / len(order)
    batches = order[: len(order) // BATCH * BATCH].reshape(-1, BATCH)
    of_block = np.searchsorted(blocks.first_samples, batches, side="right") - 1
    of_shard = blocks.shards[of_block]
    distinct = 1 + (np.diff(np.sort(of_shard, axis=1), axis=1) != 0).sum(axis=1)
    return Quality(float(displacement), float(distinct.mean()), _same(of_shard), _same(of_block))


def _same(groups: Ids) -> float:
    """Return the share of pairs within a row that belong to one group."""
    numbers = groups + np.arange(len(groups))[:, None] * (int(groups.max()) + 1)
    counts = np.unique(numbers, return_counts=True)[1].astype(np.float64)
    return float((counts * (counts - 1)).sum() / (len(groups) * BATCH * (BATCH - 1)))


def orders() -> dict[str, Quality]:
    """Return the quality of each order by name.

    webdataset's buffer is given the memory of our blocks in use. It is also given twice that, because our arena also
    holds blocks that are read ahead.
    """
    blocks = imagenet_like()
    samples = int(blocks.first_samples[-1])
    memory = LANES * BLOCK_BYTES
    by_name = {
        "full shuffle": np.random.default_rng(0).permutation(samples),
        f"ours: {LANES} lanes, blocks of {BLOCK_BYTES >> 20} MiB": epoch_order(blocks, seed=0, epoch=0).samples,
        _buffer_name(memory): webdataset_order(samples, memory // SAMPLE_BYTES),
        _buffer_name(2 * memory): webdataset_order(samples, 2 * memory // SAMPLE_BYTES),
        "no shuffle": np.arange(samples),
    }
    return {name: judge(order, blocks) for name, order in by_name.items()}


def _buffer_name(memory: int) -> str:
    samples = memory // SAMPLE_BYTES
    decoded = samples * DECODED_BYTES >> 20
    return f"webdataset: buffer of {samples} samples, {memory >> 20} MiB ({decoded} MiB if decoded)"


def measure() -> Iterator[Line | Table]:
    found = orders()
    full, ours, buffer, *_ = found.values()
    yield Line(
        "shuffle: mean displacement, as a share of the epoch",
        f"{ours.displacement:.3f}",
        f"full shuffle: {full.displacement:.3f}",
        ours.displacement / full.displacement,
        DISPLACEMENT_TARGET,
        "at least",
    )
    yield Line(
        f"shuffle: shards in a batch of {BATCH}, in {LANES * BLOCK_BYTES >> 20} MiB",
        f"{ours.shards_per_batch:.1f}",
        f"webdataset's buffer: {buffer.shards_per_batch:.1f}",
        ours.shards_per_batch / buffer.shards_per_batch,
        SHARDS_TARGET,
        "at least",
    )
    rows: list[tuple[str, ...]] = [
        (
            name,
            f"{each.displacement:.3f}",
            f"{each.shards_per_batch:.1f}",
            f"{each.same_shard:.2%}",
            f"{each.same_block:.2%}",
        )
        for name, each in found.items()
    ]
    columns = ("order", "displacement", f"shards per {BATCH}", "pairs from one shard", "pairs from one block")
    yield Table(f"{SHARDS * PER_SHARD:,} samples in {SHARDS} shards", columns, rows, NOTE)

"""How good a shuffle is: ours, webdataset's buffer in the same memory, a full shuffle, none. No data is read."""

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
from penstock.data.sources.shards import BLOCK_BYTES
from penstock.options import LANES

SHARDS, PER_SHARD, SAMPLE_BYTES = 1000, 1281, 110_000
DECODED_BYTES = 3 * 224 * 224
"""What a sample becomes: a buffer behind the decoder holds this much of each."""
BATCH = 256
FULL_TRAVEL = 1 / 3
"""The mean distance of two random places, as a share of all."""
TRAVEL_TARGET = 0.99
SHARDS_TARGET = 10.0
NOTE = """\
Travel is how far a sample goes from its place in the shards, as a share of the epoch: a third in a full shuffle, and
in any order that deals shards or blocks out at random. What tells shuffles apart is the company a sample keeps in its
batch. A buffer that follows a stream of shards mixes the few shards that pass through it together; lanes mix as many
random places of the dataset as there are lanes, in the same memory, and read each in one piece. The price: a batch has
about four samples of each block in use, so of pairs from one block it has somewhat more than a buffer lets through."""


@dataclass(frozen=True)
class Quality:
    """What is to be seen of an order."""

    travel: float
    """How far a sample goes from its place in the shards, as a share of the epoch."""
    shards_per_batch: float
    same_shard: float
    """The share of pairs in a batch that lie in one shard."""
    same_block: float


def imagenet_like() -> BlockTable:
    """1.28 million samples in 1000 shards; only their sizes."""
    rng = np.random.default_rng(0)
    sizes = [(SAMPLE_BYTES * rng.lognormal(-0.125, 0.5, PER_SHARD)).astype(np.int64) for _ in range(SHARDS)]
    return cut_blocks(sizes, [False] * SHARDS, BLOCK_BYTES)


def webdataset_order(samples: int, buffer: int) -> Ids:
    """Shards in random order, then webdataset's own buffer, over the samples' numbers."""
    rng = random.Random(0)
    shards = list(range(SHARDS))
    rng.shuffle(shards)
    stream = (shard * PER_SHARD + at for shard in shards for at in range(PER_SHARD))
    return np.fromiter(buffer_shuffle(buffer, rng=rng)(stream), np.int64, samples)


def judge(order: Ids, blocks: BlockTable) -> Quality:
    """All but the last, shorter batch."""
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    travel = np.abs(place - np.arange(len(order))).mean() / len(order)
    batches = order[: len(order) // BATCH * BATCH].reshape(-1, BATCH)
    of_block = np.searchsorted(blocks.first_samples, batches, side="right") - 1
    of_shard = blocks.shards[of_block]
    distinct = 1 + (np.diff(np.sort(of_shard, axis=1), axis=1) != 0).sum(axis=1)
    return Quality(float(travel), float(distinct.mean()), _same(of_shard), _same(of_block))


def _same(groups: Ids) -> float:
    """The share of pairs in a row that are of one group."""
    numbers = groups + np.arange(len(groups))[:, None] * (int(groups.max()) + 1)
    counts = np.unique(numbers, return_counts=True)[1].astype(np.float64)
    return float((counts * (counts - 1)).sum() / (len(groups) * BATCH * (BATCH - 1)))


def orders() -> dict[str, Quality]:
    """By name. The buffer has the memory of our blocks in use; and, to be fair, of the arena, which reads ahead."""
    blocks = imagenet_like()
    samples = int(blocks.first_samples[-1])
    memory = LANES * BLOCK_BYTES
    contestants = {
        "full shuffle": np.random.default_rng(0).permutation(samples),
        f"ours: {LANES} lanes, blocks of {BLOCK_BYTES >> 20} MiB": epoch_order(blocks, seed=0, epoch=0),
        _buffer_name(memory): webdataset_order(samples, memory // SAMPLE_BYTES),
        _buffer_name(2 * memory): webdataset_order(samples, 2 * memory // SAMPLE_BYTES),
        "no shuffle": np.arange(samples),
    }
    return {name: judge(order, blocks) for name, order in contestants.items()}


def _buffer_name(memory: int) -> str:
    samples = memory // SAMPLE_BYTES
    decoded = samples * DECODED_BYTES >> 20
    return f"webdataset: {samples} samples, {memory >> 20} MiB ({decoded} behind the decoder)"


def measure() -> Iterator[Line | Table]:
    found = orders()
    full, ours, buffer, *_ = found.values()
    yield Line(
        "shuffle: how far samples travel, of an epoch",
        f"{ours.travel:.3f}",
        f"full shuffle: {full.travel:.3f}",
        ours.travel / full.travel,
        TRAVEL_TARGET,
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
        (name, f"{q.travel:.3f}", f"{q.shards_per_batch:.1f}", f"{q.same_shard:.2%}", f"{q.same_block:.2%}")
        for name, q in found.items()
    ]
    columns = ("order", "travel", f"shards per {BATCH}", "pairs of one shard", "pairs of one block")
    yield Table(f"{SHARDS * PER_SHARD:,} samples in {SHARDS} shards", columns, rows, NOTE)

"""Fetches blocks: the bytes of a run of samples, only the parts that are wanted, in as few reads as they lie apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.layout import PAGE
from penstock.errors import PairingError
from penstock.flow.blocks import BlockTable, cut_blocks, sample_sizes
from penstock.flow.files import Extent, OpenShards
from penstock.flow.rows import NO_CRC, PARTS, WIDTH
from penstock.shards.index import ShardIndex

Ids = NDArray[np.int64]

GAP_BYTES = 64 << 10
"""Ranges closer than this are read as one: skipping less costs more than reading it."""
LAYOUTS = 1024
"""Layouts of blocks that are kept: several times as many as there are blocks in use."""


@dataclass(frozen=True)
class Dataset:
    """The whole samples of all shards, numbered through, and where the wanted parts of each lie."""

    paths: list[str]
    indexes: list[ShardIndex]
    firsts: Ids
    """First sample of each shard; one entry more than there are shards."""
    parts: list[Ids]
    """Per shard, (samples, wanted): the place of each wanted part in the index's columns."""
    choices: list[Ids]
    """Per shard, (samples, wanted): which of the alternatives it is."""
    numbers: list[Ids]
    """Per shard, the index's own number of each sample."""

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def keys(self, samples: Ids) -> list[str]:
        """Their keys."""
        shards = np.searchsorted(self.firsts, samples, side="right") - 1
        inside = samples - self.firsts[shards]
        return [
            self.indexes[shard].keys[self.numbers[shard][place]]
            for shard, place in zip(shards.tolist(), inside.tolist(), strict=True)
        ]

    def key(self, sample: int) -> str:
        """A sample's key."""
        return self.keys(np.array([sample]))[0]

    def where(self, sample: int, suffix: str | None = None) -> tuple[str, str, int]:
        """For messages: shard, name and offset of that part of a sample; without a suffix, its key and first part."""
        shard = int(np.searchsorted(self.firsts, sample, side="right")) - 1
        index, parts = self.indexes[shard], self.parts[shard][sample - self.firsts[shard]]
        if suffix is not None:
            parts = parts[[index.suffixes[index.suffix_ids[part]] == suffix for part in parts]]
        return self.paths[shard], self.key(sample) + (suffix or ""), int(index.offsets[parts].min())


def make_dataset(
    paths: Sequence[str], indexes: Sequence[ShardIndex], whole: Sequence[Ids], wanted: Sequence[tuple[str, ...]]
) -> Dataset:
    """`wanted` are alternatives per part; every whole sample must have one of each."""
    tables = [_wanted_parts(path, index, rows, wanted) for path, index, rows in zip(paths, indexes, whole, strict=True)]
    counts = [len(rows) for rows in whole]
    firsts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    parts, choices = [parts for parts, _ in tables], [choices for _, choices in tables]
    return Dataset(list(paths), list(indexes), firsts, parts, choices, list(whole))


def _wanted_parts(path: str, index: ShardIndex, whole: Ids, wanted: Sequence[tuple[str, ...]]) -> tuple[Ids, Ids]:
    table = np.full((len(index), len(wanted)), -1, np.int64)
    choices = np.zeros_like(table)
    for column, alternatives in enumerate(wanted):
        for choice, suffix in reversed(list(enumerate(alternatives))):  # the first one is written last and wins
            if suffix in index.suffixes:
                at = np.flatnonzero(index.suffix_ids == index.suffixes.index(suffix))
                table[index.sample_ids[at], column] = at
                choices[index.sample_ids[at], column] = choice
    table = table[whole]
    if (table < 0).any():
        row, column = np.argwhere(table < 0)[0]
        sample = index.sample(int(whole[row]))
        raise PairingError(
            f"sample has no {' or '.join(wanted[column])}",
            shard=path,
            member=sample.key,
            offset=sample.parts[0].offset,
            stage="pair",
        )
    return table, choices[whole]


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """How a block lies in the arena."""

    extents: list[Extent]
    rows: Ids
    """Of all its samples, for slot 0 and as if the block lay at the arena's start."""
    size: int


def lay_out_samples(dataset: Dataset, shard: int, inside: slice | Ids) -> BlockLayout:
    """Some samples of a shard as one block; `inside` are their numbers there."""
    index, parts = dataset.indexes[shard], dataset.parts[shard][inside]
    extents, places, size = lay_out(index.offsets[parts], index.lengths[parts])
    rows = np.zeros((len(parts), PARTS + WIDTH * parts.shape[1]), np.int64)
    offsets, lengths, choices, crcs = (rows[:, PARTS + column :: WIDTH] for column in range(WIDTH))
    offsets[:], lengths[:] = places, index.lengths[parts]
    choices[:] = dataset.choices[shard][inside]
    crcs[:] = NO_CRC if index.crcs is None else index.crcs[parts]
    return BlockLayout(extents, rows, size)


class ShardSupply:
    """Blocks of a dataset, as the engine asks for them. `fill` runs in several threads; the rest in one."""

    def __init__(self, dataset: Dataset, block_bytes: int, *, direct: bool = False) -> None:
        self.dataset = dataset
        self._made_of = (dataset, block_bytes, direct)
        # All parts count, wanted or not: the order must not depend on which fields somebody reads.
        sizes = [sample_sizes(index)[numbers] for index, numbers in zip(dataset.indexes, dataset.numbers, strict=True)]
        compressed = [index.compression is not None for index in dataset.indexes]
        self.blocks: BlockTable = cut_blocks(sizes, compressed, block_bytes)
        self._block_sizes: Ids = np.add.reduceat(np.concatenate(sizes), self.blocks.first_samples[:-1])
        self._files = OpenShards(dataset.paths, dataset.indexes, direct=direct)
        self._layout = lru_cache(LAYOUTS)(self._make_layout)  # its own lock: `fill` runs in several threads

    def __reduce__(self) -> tuple[Any, ...]:
        """Made anew in another process: what is open or looked up stays here."""
        dataset, block_bytes, direct = self._made_of
        return partial(ShardSupply, direct=direct), (dataset, block_bytes)

    def blocks_of(self, samples: Ids) -> Ids:
        """The block each sample lies in."""
        return np.searchsorted(self.blocks.first_samples, samples, side="right") - 1

    def block_bytes(self, block: int) -> int:
        """What the block takes in the arena: the wanted parts and the small gaps between them."""
        return self._layout(block).size

    def block_sizes(self) -> Ids:
        """About how much each block takes: all parts, wanted or not."""
        return self._block_sizes

    def rows(self, samples: Ids, slots: Ids, bases: Ids) -> Ids:
        """What `flow.rows` says, of these samples."""
        rows = np.empty((len(samples), PARTS + WIDTH * self._width), np.int64)
        firsts = self.blocks.first_samples
        for at, (sample, block) in enumerate(zip(samples.tolist(), self.blocks_of(samples).tolist(), strict=True)):
            rows[at] = self._layout(block).rows[sample - firsts[block]]
        rows[:, 0] = slots
        rows[:, PARTS::WIDTH] += bases[:, None]
        return rows

    def fill(self, block: int, into: memoryview) -> int:
        """Read the block's extents into the arena: the kernel copies straight there."""
        return self._files.read(int(self.blocks.shards[block]), self._layout(block).extents, into)

    def close(self) -> None:
        """Close the shards."""
        self._files.close()

    @property
    def _width(self) -> int:
        return int(self.dataset.parts[0].shape[1])

    def _make_layout(self, block: int) -> BlockLayout:
        first, last = self.blocks.first_samples[block : block + 2].tolist()
        shard = int(self.blocks.shards[block])
        start = int(self.dataset.firsts[shard])
        layout = lay_out_samples(self.dataset, shard, slice(first - start, last - start))
        layout.rows[:, 1] = np.arange(first, last)
        return layout


def lay_out(offsets: Ids, lengths: Ids) -> tuple[list[Extent], Ids, int]:
    """Join ranges that lie close together; say where each part comes to lie in the block's memory."""
    flat, sizes = offsets.ravel(), lengths.ravel()
    order = np.argsort(flat, kind="stable")
    starts, ends = flat[order], np.maximum.accumulate((flat + sizes)[order])
    new = np.concatenate(([True], starts[1:] > ends[:-1] + GAP_BYTES))
    heads = np.flatnonzero(new)
    tails = np.concatenate((heads[1:], [len(starts)])) - 1
    extent_lengths = ends[tails] - starts[heads]
    into_page = starts[heads] % PAGE  # kept, so that a read may go around the page cache
    rooms = -(-(into_page + extent_lengths) // PAGE) * PAGE
    at = np.cumsum(rooms) - rooms + into_page
    extents = [
        Extent(int(offset), int(length), int(place))
        for offset, length, place in zip(starts[heads], extent_lengths, at, strict=True)
    ]
    number = np.cumsum(new) - 1
    places = np.empty(len(flat), np.int64)
    places[order] = starts - starts[heads][number] + at[number]
    return extents, places.reshape(offsets.shape), int(rooms.sum())

"""How blocks lie in the arena: the wanted parts of their samples, in as few reads as they lie apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.core.slab_layout import PAGE, round_up_to_page
from penstock.data.read.sample_index import SampleIndex


@dataclass(frozen=True, slots=True)
class Extent:
    """A run of bytes of a shard and its place in the block's memory, which is as far into a page as the offset is."""

    offset: int
    length: int
    at: int


PARTS = 2
"""Where the first part's columns begin."""
WIDTH = 4
"""Columns of a part."""
NO_CRC = -1


Ids = NDArray[np.int64]

GAP_BYTES = 64 << 10
"""Ranges closer than this are read as one: skipping less costs more than reading it."""
SPAN = 44
"""Bits of an offset within a shard: what is to be read apart is laid out as if it lay farther away than that."""


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """How a block lies in the arena."""

    extents: list[Extent]
    rows: Ids
    """Of all its samples, for slot 0 and as if the block lay at the arena's start."""
    size: int


def lay_out_runs(dataset: SampleIndex, shard: int, first_samples: Ids) -> list[BlockLayout]:
    """Blocks of a shard, one behind the other: each from one of these samples to the next."""
    samples = np.arange(first_samples[0], first_samples[-1])
    counts = np.diff(first_samples)
    numbers = np.repeat(np.arange(len(counts)), counts)
    rows = part_rows(dataset, shard, samples - dataset.firsts[shard])
    rows[:, 1] = samples
    offsets = rows[:, PARTS::WIDTH]
    joined, places, _ = lay_out(offsets + (numbers[:, None] << SPAN), rows[:, PARTS + 1 :: WIDTH])
    extents: list[list[Extent]] = [[] for _ in counts]
    bases = np.zeros_like(counts)
    for extent in joined:
        number, offset = divmod(extent.offset, 1 << SPAN)
        if not extents[number]:
            bases[number] = extent.at - offset % PAGE
        extents[number].append(Extent(offset, extent.length, extent.at - int(bases[number])))
    offsets[:] = places - bases[numbers][:, None]
    cuts = (first_samples - first_samples[0]).tolist()
    return [
        BlockLayout(of_block, rows[begin:end], round_up_to_page(of_block[-1].at + of_block[-1].length))
        for of_block, begin, end in zip(extents, cuts[:-1], cuts[1:], strict=True)
    ]


def part_rows(dataset: SampleIndex, shard: int, inside: Ids) -> Ids:
    """Rows for samples of a shard, by their numbers there; offsets are still those within it."""
    index, parts = dataset.indexes[shard], dataset.parts[shard][inside]
    rows = np.zeros((len(parts), PARTS + WIDTH * parts.shape[1]), np.int64)
    offsets, lengths, choices, crcs = (rows[:, PARTS + column :: WIDTH] for column in range(WIDTH))
    offsets[:], lengths[:] = index.offsets[parts], index.lengths[parts]
    choices[:] = dataset.choices[shard][inside]
    crcs[:] = NO_CRC if index.crcs is None else index.crcs[parts]
    return rows


def to_read_apart(rows: Ids, shards: Ids | int) -> Ids:
    """Of these shards, with offsets within them: changed so that workers read the parts for themselves."""
    rows[:, PARTS::WIDTH] = ~(rows[:, PARTS::WIDTH] | np.reshape(shards, (-1, 1)) << SPAN)
    return rows


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

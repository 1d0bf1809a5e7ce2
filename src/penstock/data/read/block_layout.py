"""How blocks lie in the arena, and the rows that describe their samples to workers.

A block holds the wanted parts of its samples. Parts that lie close together in the shard are read in one read, with the
gap between them.

A row describes one sample, as int64 columns: its slot in the slab, the number that seeds its random draws, and for each
field that reads a part, in order, PART_COLUMNS columns: the part's offset in the arena, its length in bytes, which of
the field's suffixes it has (MISSING if the sample lacks the part), and its CRC32. A negative offset says that the
worker reads the part itself; it is then ~(shard << SHARD_BITS | offset in the shard).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from penstock.core.slab_layout import PAGE, round_up_to_page
from penstock.core.types import Ids
from penstock.data.read.sample_index import MISSING, SampleIndex

FIRST_PART = 2
"""Column of a row at which the first part's columns begin."""
PART_COLUMNS = 4
"""Columns of a row per part."""
NO_CRC = -1
"""Value in a row where the index has no CRC32 of the part."""
GAP_BYTES = 64 << 10
"""Ranges closer than this are read as one: skipping fewer bytes costs more than reading them."""
SHARD_BITS = 44
"""Bits of an offset within a shard. Ranges that must not be joined are laid out as if they lay farther apart."""


@dataclass(frozen=True, slots=True)
class Extent:
    """A range of bytes of a shard, and its place in the block's memory."""

    offset: int
    """Offset in the shard (in the uncompressed stream of a compressed shard)."""
    length: int
    block_offset: int
    """Offset in the block's memory, as far into a page as `offset` is, so that the read may bypass the page cache."""


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """How a block lies in the arena."""

    extents: list[Extent]
    rows: Ids
    """The rows of all its samples, for slot 0 and as if the block lay at the arena's start."""
    size: int
    """Bytes of the arena that the block takes."""


def lay_out_blocks(sample_index: SampleIndex, shard: int, first_samples: Ids) -> list[BlockLayout]:
    """Lay out neighbouring blocks of a shard: each from one of these samples up to the next."""
    samples = np.arange(first_samples[0], first_samples[-1])
    counts = np.diff(first_samples)
    blocks = np.repeat(np.arange(len(counts)), counts)
    rows = part_rows(sample_index, shard, samples - sample_index.first_samples[shard])
    rows[:, 1] = samples
    offsets = rows[:, FIRST_PART::PART_COLUMNS]
    lengths = rows[:, FIRST_PART + 1 :: PART_COLUMNS]
    joined, part_offsets, _ = join_ranges(offsets + (blocks[:, None] << SHARD_BITS), lengths)
    extents: list[list[Extent]] = [[] for _ in counts]
    block_starts = np.zeros_like(counts)
    for extent in joined:
        block, offset = divmod(extent.offset, 1 << SHARD_BITS)
        if not extents[block]:
            block_starts[block] = extent.block_offset - offset % PAGE
        extents[block].append(Extent(offset, extent.length, extent.block_offset - int(block_starts[block])))
    offsets[:] = part_offsets - block_starts[blocks][:, None]
    cuts = (first_samples - first_samples[0]).tolist()
    return [
        BlockLayout(of_block, rows[begin:end], round_up_to_page(of_block[-1].block_offset + of_block[-1].length))
        for of_block, begin, end in zip(extents, cuts[:-1], cuts[1:], strict=True)
    ]


def part_rows(sample_index: SampleIndex, shard: int, numbers: Ids) -> Ids:
    """Return rows for samples of a shard, by their numbers within it. The offsets are those in the shard."""
    index, parts = sample_index.indexes[shard], sample_index.parts[shard][numbers]
    rows = np.zeros((len(parts), FIRST_PART + PART_COLUMNS * parts.shape[1]), np.int64)
    offsets, lengths, choices, crcs = (rows[:, FIRST_PART + column :: PART_COLUMNS] for column in range(PART_COLUMNS))
    offsets[:], lengths[:] = index.offsets[parts], index.lengths[parts]
    choices[:] = sample_index.choices[shard][numbers]
    lengths[choices == MISSING] = 0
    crcs[:] = NO_CRC if index.crcs is None else index.crcs[parts]
    return rows


def mark_worker_reads(rows: Ids, shards: Ids | int) -> Ids:
    """Change rows with offsets in these shards, in place, so that workers read the parts themselves."""
    offsets = rows[:, FIRST_PART::PART_COLUMNS]
    rows[:, FIRST_PART::PART_COLUMNS] = ~(offsets | np.reshape(shards, (-1, 1)) << SHARD_BITS)
    return rows


def join_ranges(offsets: Ids, lengths: Ids) -> tuple[list[Extent], Ids, int]:
    """Join ranges that lie close together.

    Return the joined extents, the offset of each range in the memory that holds them, and the bytes of that memory.
    """
    flat, sizes = offsets.ravel(), lengths.ravel()
    order = np.argsort(flat, kind="stable")
    starts, ends = flat[order], np.maximum.accumulate((flat + sizes)[order])
    new = np.concatenate(([True], starts[1:] > ends[:-1] + GAP_BYTES))
    heads = np.flatnonzero(new)
    tails = np.concatenate((heads[1:], [len(starts)])) - 1
    extent_lengths = ends[tails] - starts[heads]
    into_page = starts[heads] % PAGE  # kept, so that a read may bypass the page cache
    extent_bytes = -(-(into_page + extent_lengths) // PAGE) * PAGE
    block_offsets = np.cumsum(extent_bytes) - extent_bytes + into_page
    extents = [
        Extent(int(offset), int(length), int(block_offset))
        for offset, length, block_offset in zip(starts[heads], extent_lengths, block_offsets, strict=True)
    ]
    number = np.cumsum(new) - 1
    range_offsets = np.empty(len(flat), np.int64)
    range_offsets[order] = starts - starts[heads][number] + block_offsets[number]
    return extents, range_offsets.reshape(offsets.shape), int(extent_bytes.sum())


class RowCache:
    """The rows of samples, made group by group and kept while there is space. Used by a single thread."""

    def __init__(self, first_samples: Ids, width: int, make: Callable[[int], Ids], max_rows: int) -> None:
        """Group g has the samples from `first_samples[g]` up to `first_samples[g + 1]`; `make(g)` returns their rows.

        The cache holds `max_rows` rows, or those of the largest group if these are more.
        """
        self._first_samples = first_samples[:-1]
        self._make = make
        largest = int(np.diff(first_samples).max(initial=0))
        self._rows: Ids = np.empty((max(largest, min(max_rows, int(first_samples[-1]))), width), np.int64)
        self._end = 0
        """End of the rows of the group that was made last. The groups fill the rows as a ring."""
        self._kept = np.zeros(len(self._first_samples), bool)
        self._shifts = np.zeros(len(self._first_samples), np.int64)
        """Difference between a sample's row and its number, for each group that is kept."""
        self._oldest_first: deque[tuple[int, int]] = deque()
        """First row and number of each group that is kept."""

    def take(self, samples: Ids) -> Ids:
        """Return the row of each sample, in memory of their own."""
        groups = np.searchsorted(self._first_samples, samples, side="right") - 1
        if self._kept[groups].all():
            return np.take(self._rows, self._shifts[groups] + samples, axis=0)
        taken = np.empty((len(samples), self._rows.shape[1]), np.int64)
        missing = np.arange(len(samples))
        while len(missing):
            kept = self._kept[groups[missing]]
            found = missing[kept]
            taken[found] = self._rows[self._shifts[groups[found]] + samples[found]]
            missing = missing[~kept]
            if len(missing):  # one group at a time: keeping it may drop another group that is needed
                self._keep(int(groups[missing[0]]))
        return taken

    def _keep(self, group: int) -> None:
        rows = self._make(group)
        begin = self._end
        if begin + len(rows) > len(self._rows):
            while self._oldest_first and self._oldest_first[0][0] >= begin:
                self._drop_oldest()
            begin = 0
        self._end = begin + len(rows)
        while self._oldest_first and begin <= self._oldest_first[0][0] < self._end:
            self._drop_oldest()
        self._rows[begin : self._end] = rows
        self._shifts[group], self._kept[group] = begin - self._first_samples[group], True
        self._oldest_first.append((begin, group))

    def _drop_oldest(self) -> None:
        _, group = self._oldest_first.popleft()
        self._kept[group] = False

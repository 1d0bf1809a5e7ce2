"""How the samples of a picked batch are read: in the order of their place, near ones together, a few reads a block.

Shards count as if they lay far behind each other, so that one look at all parts of a batch finds what lies together. A
block has reads of several shards where it must: what handing a block over costs is more than reading a small sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.core.layout import PAGE
from penstock.flow.blocklayout import GAP_BYTES, SPAN, lay_out, part_rows, to_read_apart
from penstock.flow.dataset import Dataset
from penstock.flow.extent import Extent
from penstock.flow.rows import PARTS, WIDTH

Ids = NDArray[np.int64]

MOST_READS = 8
"""Of a block, about: a batch of 32 samples that lie apart is still shared out over four readers."""


@dataclass(frozen=True, slots=True)
class PickedBlock:
    """A part of a batch, and how it lies in the arena."""

    samples: slice
    """Which of the batch's, in the order of their place."""
    reads: Mapping[int, list[Extent]]
    """By shard, ascending; none if workers read for themselves."""
    rows: Ids
    size: int


def lay_out_picks(dataset: Dataset, samples: Ids, block_bytes: int) -> Iterator[PickedBlock]:
    """The blocks of these samples, which ascend; one that is longer than `block_bytes` has a block of its own."""
    shards = np.searchsorted(dataset.firsts, samples, side="right") - 1
    rows = _rows(dataset, samples, shards)
    offsets, lengths = rows[:, PARTS::WIDTH], rows[:, PARTS + 1 :: WIDTH]
    other_shard = np.diff(shards, prepend=shards[0]) > 0
    cuts = _cuts(_far(offsets, other_shard), lengths, block_bytes)
    other_block = np.zeros_like(other_shard)
    other_block[cuts[1:-1]] = True
    extents, places, size = lay_out(_far(offsets, other_shard | other_block), lengths)
    starts = np.flatnonzero(np.concatenate(([True], (other_shard | other_block)[1:])))
    blocks = np.cumsum(other_block)
    reads, bases = _reads(extents, shards[starts].tolist(), blocks[starts].tolist())
    rows[:, PARTS::WIDTH] = places - np.array(bases)[blocks][:, None]
    for block, (base, end) in enumerate(zip(bases, (*bases[1:], size), strict=True)):
        inside = slice(cuts[block], cuts[block + 1])
        yield PickedBlock(inside, reads[block], rows[inside], end - base)


def to_be_read_apart(dataset: Dataset, samples: Ids) -> PickedBlock:
    """All of these samples, which ascend, for workers that read for themselves: a block that nobody fetches."""
    shards = np.searchsorted(dataset.firsts, samples, side="right") - 1
    return PickedBlock(slice(0, len(samples)), {}, to_read_apart(_rows(dataset, samples, shards), shards), 0)


def _rows(dataset: Dataset, samples: Ids, shards: Ids) -> Ids:
    """As workers are told them, but for the offsets: these are still within the shards."""
    firsts = np.flatnonzero(np.diff(shards, prepend=-1)).tolist()
    return np.concatenate(
        [
            part_rows(dataset, int(shards[first]), samples[first:last] - dataset.firsts[shards[first]])
            for first, last in zip(firsts, (*firsts[1:], len(samples)), strict=True)
        ]
    )


def _far(offsets: Ids, apart: NDArray[np.bool_]) -> Ids:
    """With the samples from each of those on far behind the ones before."""
    return offsets + (np.cumsum(apart)[:, None] << SPAN)


def _cuts(offsets: Ids, lengths: Ids, block_bytes: int) -> list[int]:
    """Where blocks begin, and the end: as many samples as make MOST_READS reads or `block_bytes` bytes."""
    starts, ends = np.sort(offsets, axis=1), np.sort(offsets + lengths, axis=1)
    pieces = 1 + (starts[:, 1:] > ends[:, :-1] + GAP_BYTES).sum(axis=1)
    gaps = np.concatenate(([0], np.maximum(0, starts[1:, 0] - ends[:-1, -1])))
    near = (gaps <= GAP_BYTES) & (pieces == 1)
    cuts, reads, size = [0], 0, 0
    columns = (near.tolist(), pieces.tolist(), gaps.tolist(), lengths.sum(axis=1).tolist())
    for place, (is_near, of_sample, gap, own_bytes) in enumerate(zip(*columns, strict=True)):
        reads += of_sample if not is_near or not place else 0
        size += own_bytes + (gap if is_near else 0)
        if place and (reads > MOST_READS or size > block_bytes):
            cuts.append(place)
            reads, size = of_sample, own_bytes
    return [*cuts, len(offsets)]


def _reads(
    extents: list[Extent], shards: list[int], blocks: list[int]
) -> tuple[list[dict[int, list[Extent]]], list[int]]:
    """The reads of each block, and where its memory would begin if all blocks lay behind each other.

    `shards` and `blocks` are of each run of samples that lies far behind the one before.
    """
    reads: list[dict[int, list[Extent]]] = []
    bases: list[int] = []
    for extent in extents:
        run, offset = divmod(extent.offset, 1 << SPAN)
        if blocks[run] == len(bases):
            bases.append(extent.at - offset % PAGE)
            reads.append({})
        moved = Extent(offset, extent.length, extent.at - bases[-1])
        reads[-1].setdefault(shards[run], []).append(moved)
    return reads, bases

"""Fetches blocks: the bytes of a run of samples, only the parts that are wanted, in as few reads as they lie apart."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.errors import PairingError, StorageError
from penstock.flow.blocks import BlockTable, cut_blocks, sample_sizes
from penstock.shards.index import Binding, ShardIndex
from penstock.shards.source import CompressedShard, Shard, open_shard

Ids = NDArray[np.int64]

GAP_BYTES = 64 << 10
"""Ranges closer than this are read as one: skipping less costs more than reading it."""


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

    def key(self, sample: int) -> str:
        """A sample's key."""
        shard = int(np.searchsorted(self.firsts, sample, side="right")) - 1
        return self.indexes[shard].keys[int(self.numbers[shard][sample - self.firsts[shard]])]

    def where(self, sample: int) -> tuple[str, str, int]:
        """Shard, key and offset of a sample's first part, for messages."""
        shard = int(np.searchsorted(self.firsts, sample, side="right")) - 1
        row = self.parts[shard][sample - self.firsts[shard]]
        present = row[row >= 0]
        return self.paths[shard], self.key(sample), int(self.indexes[shard].offsets[present].min())


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
class _Extent:
    """A run of bytes of the shard and its place in the block's memory."""

    offset: int
    length: int
    at: int


class ShardSupply:
    """Blocks of a dataset, as the engine asks for them. `fill` runs in several threads; the rest in one."""

    def __init__(self, dataset: Dataset, block_bytes: int) -> None:
        self.dataset = dataset
        # All parts count, wanted or not: the order must not depend on which fields somebody reads.
        sizes = [sample_sizes(index)[numbers] for index, numbers in zip(dataset.indexes, dataset.numbers, strict=True)]
        compressed = [index.compression is not None for index in dataset.indexes]
        self.blocks: BlockTable = cut_blocks(sizes, compressed, block_bytes)
        self._block_sizes: Ids = np.add.reduceat(np.concatenate(sizes), self.blocks.first_samples[:-1])
        self._files = _Files(dataset)
        self._layouts: dict[int, tuple[list[_Extent], Ids, int]] = {}

    def blocks_of(self, samples: Ids) -> Ids:
        """The block each sample lies in."""
        return np.searchsorted(self.blocks.first_samples, samples, side="right") - 1

    def block_bytes(self, block: int) -> int:
        """What the block takes in the arena: the wanted parts and the small gaps between them."""
        return self._layout(block)[2]

    def block_sizes(self) -> Ids:
        """About how much each block takes: all parts, wanted or not."""
        return self._block_sizes

    def rows(self, samples: Ids, slots: Ids, bases: Ids) -> Ids:
        """slot, sample, then (offset in the arena, length, which alternative) of each wanted part."""
        blocks = self.blocks_of(samples)
        rows = np.empty((len(samples), 2 + 3 * self._width), np.int64)
        rows[:, 0], rows[:, 1] = slots, samples
        for block in set(blocks.tolist()):
            mine = blocks == block
            _, places, _ = self._layout(block)
            index, parts, choices = self._parts(block, samples[mine])
            inside = places[samples[mine] - self.blocks.first_samples[block]]
            rows[mine, 2::3] = inside + bases[mine][:, None]
            rows[mine, 3::3] = index.lengths[parts]
            rows[mine, 4::3] = choices
        return rows

    def fill(self, block: int, into: memoryview) -> int:
        """Read the block's extents into the arena: the kernel copies straight there."""
        extents, _, _ = self._layout(block)
        shard = int(self.blocks.shards[block])
        return self._files.read(shard, extents, into)

    def forget(self, block: int) -> None:
        """The block is out of the arena; its layout is made again if it comes back."""
        self._layouts.pop(block, None)

    def close(self) -> None:
        """Close the shards."""
        self._files.close()

    @property
    def _width(self) -> int:
        return int(self.dataset.parts[0].shape[1])

    def _parts(self, block: int, samples: Ids) -> tuple[ShardIndex, Ids, Ids]:
        shard = int(self.blocks.shards[block])
        inside = samples - self.dataset.firsts[shard]
        return self.dataset.indexes[shard], self.dataset.parts[shard][inside], self.dataset.choices[shard][inside]

    def _layout(self, block: int) -> tuple[list[_Extent], Ids, int]:
        layout = self._layouts.get(block)
        if layout is None:
            first, last = self.blocks.first_samples[block : block + 2].tolist()
            index, parts, _ = self._parts(block, np.arange(first, last))
            layout = self._layouts[block] = _lay_out(index.offsets[parts], index.lengths[parts])
        return layout


def _lay_out(offsets: Ids, lengths: Ids) -> tuple[list[_Extent], Ids, int]:
    """Join ranges that lie close together; say where each part comes to lie in the block's memory."""
    flat, sizes = offsets.ravel(), lengths.ravel()
    order = np.argsort(flat, kind="stable")
    starts, ends = flat[order], np.maximum.accumulate((flat + sizes)[order])
    new = np.concatenate(([True], starts[1:] > ends[:-1] + GAP_BYTES))
    heads = np.flatnonzero(new)
    tails = np.concatenate((heads[1:], [len(starts)])) - 1
    extent_lengths = ends[tails] - starts[heads]
    at = np.concatenate(([0], np.cumsum(extent_lengths)))
    extents = [
        _Extent(int(offset), int(length), int(place))
        for offset, length, place in zip(starts[heads], extent_lengths, at[:-1], strict=True)
    ]
    number = np.cumsum(new) - 1
    places = np.empty(len(flat), np.int64)
    places[order] = starts - starts[heads][number] + at[:-1][number]
    return extents, places.reshape(offsets.shape), int(at[-1])


class _Files:
    """Open shards, opened at first use and checked against their index then."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._open: dict[int, Shard] = {}
        self._lock = threading.Lock()

    def read(self, shard: int, extents: list[_Extent], into: memoryview) -> int:
        index = self._dataset.indexes[shard]
        if index.compression is not None:
            with open_shard(self._dataset.paths[shard]) as stream:
                _check(self._dataset.paths[shard], stream, index.binding)
                return sum(_stream(stream, extent, into) for extent in extents)
        file = self._plain(shard)
        return sum(_pread(file, extent, into) for extent in extents)

    def _plain(self, shard: int) -> Shard:
        with self._lock:
            file = self._open.get(shard)
            if file is None:
                path = self._dataset.paths[shard]
                file = Shard(path)
                try:
                    _check(path, file, self._dataset.indexes[shard].binding)
                except StorageError:
                    file.close()
                    raise
                self._open[shard] = file
            return file

    def close(self) -> None:
        with self._lock:
            for file in self._open.values():
                file.close()
            self._open.clear()


def _check(path: str, shard: Shard | CompressedShard, binding: Binding) -> None:
    if (shard.size, shard.mtime_ns) != (binding.size, binding.mtime_ns):
        raise StorageError("has changed since it was indexed", shard=path, stage="read", advice="Start again")


def _stream(stream: Shard | CompressedShard, extent: _Extent, into: memoryview) -> int:
    data = stream.read_at(extent.offset, extent.length)
    into[extent.at : extent.at + len(data)] = data
    return _whole(len(data), extent, stream.path)


def _pread(file: Shard, extent: _Extent, into: memoryview) -> int:
    done = 0
    while done < extent.length:
        view = into[extent.at + done : extent.at + extent.length]
        try:
            count = os.preadv(file.fd, [view], extent.offset + done)
        except OSError as error:
            raise StorageError(
                f"cannot read: {error.strerror}", shard=file.path, offset=extent.offset + done, stage="read"
            ) from error
        if count == 0:
            break
        done += count
    return _whole(done, extent, file.path)


def _whole(count: int, extent: _Extent, path: str) -> int:
    if count < extent.length:
        raise StorageError("ends before its index says", shard=path, offset=extent.offset + count, stage="read")
    return count

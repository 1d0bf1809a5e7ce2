"""Fetches blocks: the bytes of a run of samples, only the parts that are wanted, in as few reads as they lie apart."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import NO_BLOCK, NO_BLOCK_START
from penstock.data.order.blocks import BlockTable, cut_blocks, sample_sizes
from penstock.data.read.block_layout import PARTS, WIDTH, BlockLayout, lay_out_runs, part_rows, to_read_apart
from penstock.data.read.byte_ranges import OpenedShards
from penstock.data.read.page_cache_read import WorkerReads
from penstock.data.read.sample_index import SampleIndex
from penstock.options import CacheOptions

Ids = NDArray[np.int64]


class RowCache:
    """Used by one thread."""

    def __init__(self, firsts: Ids, width: int, make: Callable[[int], Ids], most: int) -> None:
        """Group g has the samples from `firsts[g]` to `firsts[g + 1]`, and `make(g)` gives their rows."""
        self._firsts = firsts[:-1]
        self._make = make
        largest = int(np.diff(firsts).max(initial=0))
        self._rows: Ids = np.empty((max(largest, min(most, int(firsts[-1]))), width), np.int64)
        self._end = 0
        """Of the group that was made last."""
        self._kept = np.zeros(len(self._firsts), bool)
        self._shifts = np.zeros(len(self._firsts), np.int64)
        """From a sample's number to where its row is, if its group is kept."""
        self._oldest_first: deque[tuple[int, int]] = deque()
        """Where the rows of a group begin, and which it is."""

    def take(self, samples: Ids) -> Ids:
        """Of each sample its row, in memory of its own."""
        groups = np.searchsorted(self._firsts, samples, side="right") - 1
        if self._kept[groups].all():
            return np.take(self._rows, self._shifts[groups] + samples, axis=0)
        taken = np.empty((len(samples), self._rows.shape[1]), np.int64)
        left = np.arange(len(samples))
        while len(left):
            here = self._kept[groups[left]]
            found = left[here]
            taken[found] = self._rows[self._shifts[groups[found]] + samples[found]]
            left = left[~here]
            if len(left):  # one at a time: to keep it, another that is asked for may have to go
                self._keep(int(groups[left[0]]))
        return taken

    def _keep(self, group: int) -> None:
        rows = self._make(group)
        begin = self._end
        if begin + len(rows) > len(self._rows):
            while self._oldest_first and self._oldest_first[0][0] >= begin:
                self._forget_oldest()
            begin = 0
        self._end = begin + len(rows)
        while self._oldest_first and begin <= self._oldest_first[0][0] < self._end:
            self._forget_oldest()
        self._rows[begin : self._end] = rows
        self._shifts[group], self._kept[group] = begin - self._firsts[group], True
        self._oldest_first.append((begin, group))

    def _forget_oldest(self) -> None:
        _, group = self._oldest_first.popleft()
        self._kept[group] = False


GROUP = 8
"""Neighbouring blocks whose layout is worked out at once: one alone would take as long."""
GROUPS = 2048
"""Whose layouts are kept: several times as many blocks as 64 batches of large samples need."""
STRAIGHT_BYTES = 512 << 10
"""Of a sample, from which on workers read for themselves what is in memory: of smaller ones a block holds several.
All of it counts, wanted or not, as it does where blocks are cut."""
ROWS = 1 << 19
"""Of samples that are kept, in the layouts and beside one another: there are fewer groups where blocks hold many."""


class ShardBlockSource(WorkerReads):
    """Blocks of a dataset, as the engine asks for them. `fill` runs in several threads; the rest in one."""

    def __init__(
        self, dataset: SampleIndex, block_bytes: int, *, direct: bool = False, cache: CacheOptions | None = None
    ) -> None:
        self._made_of = (dataset, block_bytes, direct, cache)
        # All parts count, wanted or not: the order must not depend on which fields somebody reads.
        sizes = [sample_sizes(index)[numbers] for index, numbers in zip(dataset.indexes, dataset.numbers, strict=True)]
        compressed = [index.compression is not None for index in dataset.indexes]
        self.blocks: BlockTable = cut_blocks(sizes, compressed, block_bytes)
        self._block_sizes: Ids = np.add.reduceat(np.concatenate(sizes), self.blocks.first_samples[:-1])
        self._files = OpenedShards(dataset.paths, dataset.indexes, direct=direct, cache=cache)
        self._heads = _group_heads(self.blocks.shards)
        groups = min(GROUPS, 1 + ROWS * len(self.blocks) // (GROUP * max(1, len(dataset))))
        self._layouts = lru_cache(groups)(self._make_layouts)  # its own lock: `fill` runs in several threads
        self._groups = np.unique(self._heads)
        firsts = np.append(self.blocks.first_samples[self._groups], len(dataset))
        width = PARTS + WIDTH * dataset.parts[0].shape[1]
        self._rows = RowCache(firsts, width, self._make_rows, ROWS)
        self._straight_rows = RowCache(firsts, width, self._make_straight_rows, ROWS)
        large = int(self._block_sizes.sum()) >= STRAIGHT_BYTES * len(dataset)
        super().__init__(dataset, self._files.local, worth_it=large and not direct)

    def __reduce__(self) -> tuple[Any, ...]:
        """Made anew in another process: what is open or looked up stays here."""
        dataset, block_bytes, direct, cache = self._made_of
        return partial(ShardBlockSource, direct=direct, cache=cache), (dataset, block_bytes)

    def blocks_of(self, samples: Ids) -> Ids:
        """The block each sample is to be fetched with."""
        return np.full(len(samples), NO_BLOCK, np.int64) if self.straight else self.homes_of(samples)

    def homes_of(self, samples: Ids) -> Ids:
        """The block each sample lies in."""
        return np.searchsorted(self.blocks.first_samples, samples, side="right") - 1

    def block_bytes(self, block: int) -> int:
        """What the block takes in the arena: the wanted parts and the small gaps between them."""
        return self._layout(block).size

    def block_sizes(self) -> Ids:
        """About how much each block takes: all parts, wanted or not."""
        return self._block_sizes

    def task_rows(self, samples: Ids, slots: Ids, bases: Ids) -> Ids:
        """What `flow.rows` says, of these samples."""
        fetched = bases != NO_BLOCK_START
        rows = self._rows.take(samples) if fetched.all() else self._straight_rows.take(samples)
        if fetched.any() and not fetched.all():  # of a batch that was begun before workers read for themselves
            rows[fetched] = self._rows.take(samples[fetched])
        rows[:, 0] = slots
        rows[:, PARTS::WIDTH] += np.where(fetched, bases, 0)[:, None]
        return rows

    def read_block(self, block: int, into: memoryview) -> int:
        """Read the block's extents into the arena: the kernel copies straight there."""
        return self._files.read(int(self.blocks.shards[block]), self._layout(block).extents, into)

    def close(self) -> None:
        """Close the shards."""
        self._files.close()

    def _layout(self, block: int) -> BlockLayout:
        head = int(self._heads[block])
        return self._layouts(head)[block - head]

    def _make_layouts(self, head: int) -> list[BlockLayout]:
        """Of the group that begins with this block."""
        return lay_out_runs(self.dataset, int(self.blocks.shards[head]), self._group(head))

    def _make_rows(self, group: int) -> Ids:
        """Of all samples of a group, as they lie in their blocks."""
        return np.concatenate([layout.rows for layout in self._layouts(int(self._groups[group]))])

    def _make_straight_rows(self, group: int) -> Ids:
        """The same, for workers that read for themselves."""
        head = int(self._groups[group])
        firsts = self._group(head)
        shard = int(self.blocks.shards[head])
        rows = part_rows(self.dataset, shard, np.arange(firsts[0], firsts[-1]) - self.dataset.firsts[shard])
        rows[:, 1] = np.arange(firsts[0], firsts[-1])
        return to_read_apart(rows, shard)

    def _group(self, head: int) -> Ids:
        """Where the blocks begin of the group that begins with this one, and where the last of them ends."""
        shards = self.blocks.shards[head : head + GROUP]
        count = int(np.count_nonzero(shards == shards[0]))
        return self.blocks.first_samples[head : head + count + 1]


def _group_heads(shards: Ids) -> Ids:
    """Of each block, the first one of its group: GROUP neighbours, all of one shard."""
    numbers = np.arange(len(shards))
    firsts = np.searchsorted(shards, shards)
    return numbers - (numbers - firsts) % GROUP

"""The blocks of shards as the engine reads them: only the wanted parts, in as few reads as possible."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np

from penstock.core.contracts import NO_BLOCK, NO_BLOCK_START, TaskRows
from penstock.core.types import Ids
from penstock.data.order.blocks import BlockTable, cut_blocks, sample_sizes
from penstock.data.order.mix import Mix
from penstock.data.read.block_layout import (
    FIRST_PART,
    PART_COLUMNS,
    BlockLayout,
    RowCache,
    lay_out_blocks,
    mark_worker_reads,
    part_rows,
)
from penstock.data.read.page_cache_read import PageCacheFiles, WorkerReadable
from penstock.data.read.sample_index import SampleIndex
from penstock.data.read.shard_reader import ShardReader
from penstock.options import CacheOptions

GROUP_BLOCKS = 8
"""Neighbouring blocks that are laid out at a time: a single one would take as long."""
MAX_LAYOUT_GROUPS = 2048
"""Groups whose layouts are kept: several times as many blocks as 64 batches of large samples need."""
MAX_ROWS = 1 << 19
"""Rows of samples that are kept, in the layouts and in each row cache. Where blocks hold many samples, fewer groups
are kept for that."""
WORKER_READ_BYTES = 512 << 10
"""Mean bytes of a sample from which on workers read samples in the page cache themselves; a block holds several
smaller samples. All parts count, wanted or not, as they do where blocks are cut."""


class ShardBlockSource(WorkerReadable):
    """The blocks of several shards. `read_block` is called by several threads, all other methods by one at a time."""

    def __init__(
        self, sample_index: SampleIndex, block_bytes: int, *, direct: bool = False, cache: CacheOptions | None = None
    ) -> None:
        self._arguments = (sample_index, block_bytes, direct, cache)
        # All parts count, wanted or not: the order must not depend on the fields that are read.
        sizes = [
            sample_sizes(index)[numbers]
            for index, numbers in zip(sample_index.indexes, sample_index.numbers, strict=True)
        ]
        compressed = [index.compression is not None for index in sample_index.indexes]
        self.blocks: BlockTable = cut_blocks(sizes, compressed, block_bytes)
        self._block_sizes: Ids = np.add.reduceat(np.concatenate(sizes), self.blocks.first_samples[:-1])
        self._reader = ShardReader(sample_index.paths, sample_index.indexes, direct=direct, cache=cache)
        self._heads = _group_heads(self.blocks.shards)
        kept_groups = min(
            MAX_LAYOUT_GROUPS, 1 + MAX_ROWS * len(self.blocks) // (GROUP_BLOCKS * max(1, len(sample_index)))
        )
        self._layouts = lru_cache(kept_groups)(self._make_layouts)  # an lru_cache may be called by several threads
        self._groups = np.unique(self._heads)
        first_samples = np.append(self.blocks.first_samples[self._groups], len(sample_index))
        width = FIRST_PART + PART_COLUMNS * sample_index.parts[0].shape[1]
        self._rows = RowCache(first_samples, width, self._make_rows, MAX_ROWS)
        self._worker_read_rows = RowCache(first_samples, width, self._make_worker_read_rows, MAX_ROWS)
        large = int(self._block_sizes.sum()) >= WORKER_READ_BYTES * len(sample_index)
        super().__init__(sample_index, self._reader.local, worth_it=large and not direct)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments only: another process opens files and makes layouts itself."""
        sample_index, block_bytes, direct, cache = self._arguments
        return partial(ShardBlockSource, direct=direct, cache=cache), (sample_index, block_bytes)

    def blocks_of(self, samples: Ids) -> Ids:
        """Return the block to read for each sample; NO_BLOCK where workers read."""
        return np.full(len(samples), NO_BLOCK, np.int64) if self.workers_read else self.containing_blocks(samples)

    def containing_blocks(self, samples: Ids) -> Ids:
        """Return the block that each sample lies in."""
        return np.searchsorted(self.blocks.first_samples, samples, side="right") - 1

    def block_bytes(self, block: int) -> int:
        """Return the bytes of the arena that the block takes: its wanted parts and the small gaps between them."""
        return self._layout(block).size

    def block_sizes(self) -> Ids:
        """Return about how many bytes each block takes: those of all parts, wanted or not."""
        return self._block_sizes

    def task_rows(self, samples: Ids, slots: Ids, block_starts: Ids) -> TaskRows:
        """Return the rows of these samples, see `block_layout`."""
        in_arena = block_starts != NO_BLOCK_START
        rows = self._rows.take(samples) if in_arena.all() else self._worker_read_rows.take(samples)
        if in_arena.any() and not in_arena.all():  # the batch was begun before workers read themselves
            rows[in_arena] = self._rows.take(samples[in_arena])
        rows[:, 0] = slots
        rows[:, FIRST_PART::PART_COLUMNS] += np.where(in_arena, block_starts, 0)[:, None]
        return self.sample_index.with_keys(rows, samples)

    def read_block(self, block: int, into: memoryview) -> int:
        """Read the block's extents into the arena, and return the bytes read."""
        return self._reader.read(int(self.blocks.shards[block]), self._layout(block).extents, into)

    def close(self) -> None:
        """Close the shards."""
        self._reader.close()

    def _layout(self, block: int) -> BlockLayout:
        head = int(self._heads[block])
        return self._layouts(head)[block - head]

    def _make_layouts(self, head: int) -> list[BlockLayout]:
        """Lay out the group that begins with this block."""
        return lay_out_blocks(self.sample_index, int(self.blocks.shards[head]), self._first_samples(head))

    def _make_rows(self, group: int) -> Ids:
        """Return the rows of all samples of a group, as they lie in their blocks."""
        return np.concatenate([layout.rows for layout in self._layouts(int(self._groups[group]))])

    def _make_worker_read_rows(self, group: int) -> Ids:
        """Return the rows of all samples of a group for workers that read themselves."""
        head = int(self._groups[group])
        first_samples = self._first_samples(head)
        samples = np.arange(first_samples[0], first_samples[-1])
        shard = int(self.blocks.shards[head])
        rows = part_rows(self.sample_index, shard, samples - self.sample_index.first_samples[shard])
        rows[:, 1] = samples
        return mark_worker_reads(rows, shard)

    def _first_samples(self, head: int) -> Ids:
        """Return the first sample of each block in the group that begins with this block, and the group's end."""
        shards = self.blocks.shards[head : head + GROUP_BLOCKS]
        count = int(np.count_nonzero(shards == shards[0]))
        return self.blocks.first_samples[head : head + count + 1]


def _group_heads(shards: Ids) -> Ids:
    """Return, for each block, the first block of its group: GROUP_BLOCKS neighbours, all of one shard."""
    numbers = np.arange(len(shards))
    firsts = np.searchsorted(shards, shards)
    return numbers - (numbers - firsts) % GROUP_BLOCKS


class MixedBlockSource:
    """The blocks of shards as a mix visits them: each visit is a block of its own to the engine.

    So between two visits a block need not stay in memory.
    """

    def __init__(self, block_source: ShardBlockSource, mix: Mix) -> None:
        self._block_source = block_source
        self._mix = mix
        self.blocks = mix.visits

    def choose_readers(self) -> None:
        """Decide who reads from now on: the workers if all samples seem to be in the page cache."""
        self._block_source.choose_readers()

    def worker_files(self) -> PageCacheFiles | None:
        """Return the files for workers; None if workers never have to read."""
        return self._block_source.worker_files()

    def worker_read_bytes(self, samples: Ids) -> int:
        """Return the bytes of these samples that workers read themselves."""
        return self._block_source.worker_read_bytes(self._mix.sample_numbers(samples))

    def blocks_of(self, samples: Ids) -> Ids:
        """Return the visit to read for each sample; NO_BLOCK where workers read."""
        if self._block_source.workers_read:
            return self._block_source.blocks_of(samples)
        return self.containing_blocks(samples)

    def containing_blocks(self, samples: Ids) -> Ids:
        """Return the visit that each sample belongs to."""
        return self._mix.visits_of(samples)

    def block_bytes(self, block: int) -> int:
        """Return the bytes of the arena that the visited block takes."""
        return self._block_source.block_bytes(int(self._mix.visited_blocks[block]))

    def block_sizes(self) -> Ids:
        """Return about how many bytes each visit takes."""
        return self._block_source.block_sizes()[self._mix.visited_blocks]

    def read_block(self, block: int, into: memoryview) -> int:
        """Read the visited block."""
        return self._block_source.read_block(int(self._mix.visited_blocks[block]), into)

    def task_rows(self, samples: Ids, slots: Ids, block_starts: Ids) -> TaskRows:
        """Return the rows of these samples. A sample's number in the mix seeds its draws."""
        rows = self._block_source.task_rows(self._mix.sample_numbers(samples), slots, block_starts)
        rows[:, 1] = samples
        return rows

    def close(self) -> None:
        """Close the shards."""
        self._block_source.close()

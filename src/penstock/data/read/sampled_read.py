"""The blocks of batches that a sampler picks: read in the order of the shards, neighbouring samples in one read.

The engine needs samples and blocks with unique numbers. A pick is one use of a sample: it is numbered by how many picks
came before it and by the sample, so a sample may be picked several times. A block belongs to a single batch. No number
is used twice, not even in different epochs. A batch is laid out when the engine asks for its blocks, and is kept until
it, or a later batch, has been delivered and another batch is laid out.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import NO_BLOCK, NO_BLOCK_START, TaskRows
from penstock.core.slab_layout import PAGE
from penstock.core.types import Ids
from penstock.data.read.block_layout import (
    FIRST_PART,
    GAP_BYTES,
    PART_COLUMNS,
    SHARD_BITS,
    Extent,
    join_ranges,
    mark_worker_reads,
    part_rows,
)
from penstock.data.read.page_cache_read import WorkerReadable
from penstock.data.read.sample_index import SampleIndex
from penstock.data.read.shard_reader import ShardReader
from penstock.errors import SettingError
from penstock.options import CacheOptions

MAX_BLOCK_READS = 8
"""About how many reads a block has at most: a batch of 32 samples that lie apart is divided between four readers."""


@dataclass(frozen=True, slots=True)
class SampledBlock:
    """Some samples of a batch, and how they lie in the arena."""

    samples: slice
    """Positions in the batch's samples, sorted by number."""
    reads: Mapping[int, list[Extent]]
    """The extents to read, by shard in ascending order; empty if workers read the samples themselves."""
    rows: Ids
    size: int
    """Bytes of the arena that the block takes."""


def lay_out_samples(sample_index: SampleIndex, samples: Ids, block_bytes: int) -> Iterator[SampledBlock]:
    """Yield the blocks of these samples, which are sorted; one longer than `block_bytes` has a block of its own."""
    shards = sample_index.shards_of(samples)
    rows = _rows_in_shards(sample_index, samples, shards)
    offsets, lengths = rows[:, FIRST_PART::PART_COLUMNS], rows[:, FIRST_PART + 1 :: PART_COLUMNS]
    new_shard = np.diff(shards, prepend=shards[0]) > 0
    cuts = _cut(_separate(offsets, new_shard), lengths, block_bytes)
    new_block = np.zeros_like(new_shard)
    new_block[cuts[1:-1]] = True
    extents, part_offsets, size = join_ranges(_separate(offsets, new_shard | new_block), lengths)
    run_starts = np.flatnonzero(np.concatenate(([True], (new_shard | new_block)[1:])))
    blocks = np.cumsum(new_block)
    reads, starts = _reads_of_blocks(extents, shards[run_starts].tolist(), blocks[run_starts].tolist())
    rows[:, FIRST_PART::PART_COLUMNS] = part_offsets - np.array(starts)[blocks][:, None]
    for block, (start, end) in enumerate(zip(starts, (*starts[1:], size), strict=True)):
        inside = slice(cuts[block], cuts[block + 1])
        yield SampledBlock(inside, reads[block], rows[inside], end - start)


def lay_out_for_workers(sample_index: SampleIndex, samples: Ids) -> SampledBlock:
    """Return one block of all these samples, which are sorted, for workers that read themselves: it is never read."""
    shards = sample_index.shards_of(samples)
    rows = mark_worker_reads(_rows_in_shards(sample_index, samples, shards), shards)
    return SampledBlock(slice(0, len(samples)), {}, rows, 0)


def _rows_in_shards(sample_index: SampleIndex, samples: Ids, shards: Ids) -> Ids:
    """Return the rows of these samples, with offsets in the shards."""
    firsts = np.flatnonzero(np.diff(shards, prepend=-1)).tolist()
    return np.concatenate(
        [
            part_rows(sample_index, int(shards[first]), samples[first:last] - sample_index.first_samples[shards[first]])
            for first, last in zip(firsts, (*firsts[1:], len(samples)), strict=True)
        ]
    )


def _separate(offsets: Ids, is_new: NDArray[np.bool_]) -> Ids:
    """Move the offsets from each new shard or block on far behind those before, so that they are not joined."""
    return offsets + (np.cumsum(is_new)[:, None] << SHARD_BITS)


def _cut(offsets: Ids, lengths: Ids, block_bytes: int) -> list[int]:
    """Return where blocks begin, and the end. A block has about MAX_BLOCK_READS reads or `block_bytes` at most."""
    starts, ends = np.sort(offsets, axis=1), np.sort(offsets + lengths, axis=1)
    pieces = 1 + (starts[:, 1:] > ends[:, :-1] + GAP_BYTES).sum(axis=1)
    gaps = np.concatenate(([0], np.maximum(0, starts[1:, 0] - ends[:-1, -1])))
    near = (gaps <= GAP_BYTES) & (pieces == 1)
    cuts, reads, size = [0], 0, 0
    columns = (near.tolist(), pieces.tolist(), gaps.tolist(), lengths.sum(axis=1).tolist())
    for position, (is_near, sample_reads, gap, sample_bytes) in enumerate(zip(*columns, strict=True)):
        reads += sample_reads if not is_near or not position else 0
        size += sample_bytes + (gap if is_near else 0)
        if position and (reads > MAX_BLOCK_READS or size > block_bytes):
            cuts.append(position)
            reads, size = sample_reads, sample_bytes
    return [*cuts, len(offsets)]


def _reads_of_blocks(
    extents: list[Extent], shards: list[int], blocks: list[int]
) -> tuple[list[dict[int, list[Extent]]], list[int]]:
    """Return the reads of each block, and where it would begin if all blocks lay one behind the other.

    `shards` and `blocks` are those of each run of samples that `_separate` has moved.
    """
    reads: list[dict[int, list[Extent]]] = []
    starts: list[int] = []
    for extent in extents:
        run, offset = divmod(extent.offset, 1 << SHARD_BITS)
        if blocks[run] == len(starts):
            starts.append(extent.block_offset - offset % PAGE)
            reads.append({})
        moved = Extent(offset, extent.length, extent.block_offset - starts[-1])
        reads[-1].setdefault(shards[run], []).append(moved)
    return reads, starts


@dataclass(frozen=True, slots=True)
class SampledReadCounts:
    """Counts of what has been delivered and read. Until an epoch ends, more batches are read than are delivered."""

    batches: int = 0
    """Batches delivered."""
    samples: int = 0
    """Samples delivered."""
    reads: int = 0
    """Requests to the storage; samples that lie together share one."""
    bytes_read: int = 0
    bytes_wanted: int = 0
    """Bytes of the picks' wanted parts; the other bytes read lie between them."""

    def since(self, before: SampledReadCounts) -> SampledReadCounts:
        """Return the difference from earlier counts."""
        return SampledReadCounts(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))


@dataclass(slots=True, eq=False)
class _PickedBatch:
    """One batch that the sampler has given."""

    picks: Ids
    position: int
    """Picks of the epoch before this batch."""
    blocks: tuple[int, ...] = ()
    """Its blocks, once it is laid out."""


class SampledBlockSource(WorkerReadable):
    """The blocks of picked samples.

    `add_batch` and `mark_delivered` are called in the training loop's thread, `read_block` in reader threads, and the
    other methods of a block source in the engine's scheduler thread.
    """

    def __init__(
        self, sample_index: SampleIndex, block_bytes: int, *, direct: bool = False, cache: CacheOptions | None = None
    ) -> None:
        for path, index in zip(sample_index.paths, sample_index.indexes, strict=True):
            if index.compression is not None:
                raise SettingError(
                    "a sampler cannot pick from a compressed shard, which is read from its start each time",
                    shard=path,
                    advice="Unpack it with 'penstock shards pack', or leave the order to the loader (shuffle=True)",
                )
        self._total = len(sample_index)
        self._block_bytes = block_bytes
        self._reader = ShardReader(sample_index.paths, sample_index.indexes, direct=direct, cache=cache)
        super().__init__(sample_index, self._reader.local, worth_it=not direct)
        self._next_block = 0
        self._next_pick = 0
        self._last_delivered = -1
        """The last pick that was delivered."""
        self._batches_kept: deque[_PickedBatch] = deque()
        self._not_laid_out: dict[int, _PickedBatch] = {}
        """Batches by their first pick. The engine's thread lays them out, to keep that work off the training loop."""
        self._blocks: dict[int, SampledBlock] = {}
        self._places: dict[int, tuple[int, int]] = {}
        """The block of each pick, and its row there."""
        self._batches = self._samples = self._reads = self._bytes_read = self._bytes_wanted = 0
        self._count_lock = threading.Lock()

    def add_batch(self, samples: Ids, position: int) -> Ids:
        """Return picks of these samples; `position` is the number of picks of the epoch before them."""
        total = self._total
        for wrong in samples[(samples < 0) | (samples >= total)]:
            raise SettingError(f"the sampler gave {wrong}, and there are {total} samples", stage="plan")
        picks = np.arange(self._next_pick, self._next_pick + len(samples)) * total + samples
        self._next_pick += len(samples)
        batch = _PickedBatch(picks, position)
        self._batches_kept.append(batch)
        if len(picks):
            self._not_laid_out[int(picks[0])] = batch
        return picks

    def sample_numbers(self, picks: Ids) -> Ids:
        """Return the sample of each pick."""
        return picks % self._total

    def worker_read_bytes(self, samples: Ids) -> int:
        """Return the bytes of these picks that workers read themselves."""
        return super().worker_read_bytes(self.sample_numbers(samples))

    def mark_delivered(self, picks: Ids) -> None:
        """Count a delivered batch. Its blocks, and those of earlier batches, are dropped when another is laid out."""
        self._batches += 1
        self._samples += len(picks)
        if len(picks):  # all picks of a batch are above those of the batches before, so any of them will do
            self._last_delivered = max(self._last_delivered, int(picks[-1]))

    def _drop_delivered(self) -> None:
        while self._batches_kept and self._is_delivered(self._batches_kept[0]):
            batch = self._batches_kept.popleft()
            for number in batch.blocks:
                del self._blocks[number]
            for pick in batch.picks.tolist():
                self._places.pop(pick, None)  # a batch of an epoch that was left early may never have been laid out
                self._not_laid_out.pop(pick, None)

    def _is_delivered(self, batch: _PickedBatch) -> bool:
        return not len(batch.picks) or int(batch.picks[0]) <= self._last_delivered

    @property
    def undelivered_batches(self) -> int:
        """Batches that were added and are not delivered."""
        return sum(not self._is_delivered(batch) for batch in list(self._batches_kept))

    @property
    def counts(self) -> SampledReadCounts:
        """The counts so far."""
        with self._count_lock:
            return SampledReadCounts(self._batches, self._samples, self._reads, self._bytes_read, self._bytes_wanted)

    # -- called by the engine --------------------------------------------------------------------------------

    def block_uses(self, block: int) -> int:
        """Return the number of picks in the block; 0 if it belongs to an epoch that was left early."""
        found = self._blocks.get(block)
        return 0 if found is None else len(found.rows)

    def blocks_of(self, samples: Ids) -> Ids:
        """Return the block to read for each pick. When a batch is asked for the first time, it is laid out."""
        batch = self._not_laid_out.pop(int(samples[0]), None) if len(samples) else None
        if batch is not None:
            self._drop_delivered()
            self._lay_out(batch)
        blocks = (self._places[pick][0] for pick in samples.tolist())
        return np.array([block if self._blocks[block].reads else NO_BLOCK for block in blocks], np.int64)

    def _lay_out(self, batch: _PickedBatch) -> None:
        samples = self.sample_numbers(batch.picks)
        order = np.argsort(samples, kind="stable")
        positions = batch.position + order
        if self.workers_read:
            block = lay_out_for_workers(self.sample_index, samples[order])
            blocks: Iterable[SampledBlock] = [block]
            self._count(block.rows, reads=block.rows[:, FIRST_PART::PART_COLUMNS].size)
        else:
            blocks = lay_out_samples(self.sample_index, samples[order], self._block_bytes)
        batch.blocks = tuple(self._add(block, batch.picks[order[block.samples]], positions) for block in blocks)

    def _add(self, block: SampledBlock, picks: Ids, positions: Ids) -> int:
        number, self._next_block = self._next_block, self._next_block + 1
        # The position seeds the random draws: a sample that is picked again gets others, the same in every run.
        block.rows[:, 1] = positions[block.samples]
        self._blocks[number] = block
        self._places.update((pick, (number, row)) for row, pick in enumerate(picks.tolist()))
        return number

    def block_bytes(self, block: int) -> int:
        """Return the bytes of the arena that the block takes."""
        return self._blocks[block].size

    def read_block(self, block: int, into: memoryview) -> int:
        """Read the block, shard after shard in ascending order, and return the bytes read."""
        found = self._blocks.get(block)
        if found is None:
            return 0
        count = sum(self._reader.read(shard, extents, into) for shard, extents in found.reads.items())
        self._count(found.rows, sum(map(len, found.reads.values())), count)
        return count

    def _count(self, rows: Ids, reads: int, bytes_read: int | None = None) -> None:
        """Count the reads for these rows. Without `bytes_read`, only the wanted bytes are read."""
        wanted = int(rows[:, FIRST_PART + 1 :: PART_COLUMNS].sum())
        with self._count_lock:
            self._reads += reads
            self._bytes_read += wanted if bytes_read is None else bytes_read
            self._bytes_wanted += wanted

    def task_rows(self, samples: Ids, slots: Ids, block_starts: Ids) -> TaskRows:
        """Return the rows of these picks, see `block_layout`."""
        rows = np.empty((len(samples), FIRST_PART + PART_COLUMNS * self.sample_index.parts[0].shape[1]), np.int64)
        for position, pick in enumerate(samples.tolist()):
            block, row = self._places[pick]
            rows[position] = self._blocks[block].rows[row]
        rows[:, 0] = slots
        rows[:, FIRST_PART::PART_COLUMNS] += np.where(block_starts != NO_BLOCK_START, block_starts, 0)[:, None]
        return self.sample_index.with_keys(rows, self.sample_numbers(samples))

    def close(self) -> None:
        """Close the shards."""
        self._reader.close()

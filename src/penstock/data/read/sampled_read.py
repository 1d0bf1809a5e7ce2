"""Blocks for batches that a sampler picks: its samples in the order of their place, neighbours in one read.

The engine wants samples and blocks with numbers of their own. A pick is numbered by how many came before it and by the
sample it is, so the same sample may come again; a block belongs to one batch. No number ever comes again, in no epoch.
A batch is known from when it is drawn until it, or one after it, is delivered, and a batch is laid out after that.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import NO_BLOCK, NO_BLOCK_START
from penstock.core.slab_layout import PAGE
from penstock.data.read.block_layout import GAP_BYTES, PARTS, SPAN, WIDTH, Extent, lay_out, part_rows, to_read_apart
from penstock.data.read.byte_ranges import OpenedShards
from penstock.data.read.page_cache_read import WorkerReads
from penstock.data.read.sample_index import SampleIndex
from penstock.errors import SettingError
from penstock.options import CacheOptions

Ids = NDArray[np.int64]

MOST_READS = 8
"""Of a block, about: a batch of 32 samples that lie apart is still shared out over four readers."""


@dataclass(frozen=True, slots=True)
class SampledBlock:
    """A part of a batch, and how it lies in the arena."""

    samples: slice
    """Which of the batch's, in the order of their place."""
    reads: Mapping[int, list[Extent]]
    """By shard, ascending; none if workers read for themselves."""
    rows: Ids
    size: int


def lay_out_samples(dataset: SampleIndex, samples: Ids, block_bytes: int) -> Iterator[SampledBlock]:
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
        yield SampledBlock(inside, reads[block], rows[inside], end - base)


def to_be_read_apart(dataset: SampleIndex, samples: Ids) -> SampledBlock:
    """All of these samples, which ascend, for workers that read for themselves: a block that nobody fetches."""
    shards = np.searchsorted(dataset.firsts, samples, side="right") - 1
    return SampledBlock(slice(0, len(samples)), {}, to_read_apart(_rows(dataset, samples, shards), shards), 0)


def _rows(dataset: SampleIndex, samples: Ids, shards: Ids) -> Ids:
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


@dataclass(frozen=True, slots=True)
class SampledBlockTable:
    """What was read for picks so far: some batches more than are delivered, until an epoch is over."""

    batches: int = 0
    """Delivered."""
    samples: int = 0
    """Of which so many."""
    reads: int = 0
    """Requests to the storage: samples that lie together have one."""
    bytes_read: int = 0
    bytes_wanted: int = 0
    """By the picks; the rest lies between them."""

    def since(self, before: SampledBlockTable) -> SampledBlockTable:
        """What happened between the two."""
        return SampledBlockTable(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))


@dataclass(slots=True, eq=False)
class _DrawnBatch:
    """One batch."""

    picks: Ids
    position: int
    """How many picks the epoch had before it."""
    blocks: tuple[int, ...] = ()
    """Once the engine has asked for them."""


class SampledBlockSource(WorkerReads):
    """As `ShardSupply`, of samples that were picked. `draw` and `deliver` run in the training loop's thread."""

    def __init__(
        self, dataset: SampleIndex, block_bytes: int, *, direct: bool = False, cache: CacheOptions | None = None
    ) -> None:
        for path, index in zip(dataset.paths, dataset.indexes, strict=True):
            if index.compression is not None:
                raise SettingError(
                    "a sampler cannot pick from a compressed shard, which is read from its start each time",
                    shard=path,
                    advice="Unpack it with 'penstock shards pack', or leave the order to the loader (shuffle=True)",
                )
        self._total = len(dataset)
        self._block_bytes = block_bytes
        self._files = OpenedShards(dataset.paths, dataset.indexes, direct=direct, cache=cache)
        super().__init__(dataset, self._files.local, worth_it=not direct)
        self._next_block = 0
        self._next_pick = 0
        self._delivered = -1
        """The last pick that was."""
        self._drawn: deque[_DrawnBatch] = deque()
        self._new: dict[int, _DrawnBatch] = {}
        """By their first pick: batches that are not laid out yet. The engine does that: the loop has steps to do."""
        self._blocks: dict[int, SampledBlock] = {}
        self._places: dict[int, tuple[int, int]] = {}
        """Of each pick: its block, and its row there."""
        self._batches = self._samples = self._reads = self._bytes_read = self._bytes_wanted = 0
        self._counting = threading.Lock()

    def draw(self, samples: Ids, position: int) -> Ids:
        """The numbers of these picks; `position` is how many the epoch had before them."""
        total = self._total
        for wrong in samples[(samples < 0) | (samples >= total)]:
            raise SettingError(f"the sampler gave {wrong}, and there are {total} samples", stage="plan")
        picks = np.arange(self._next_pick, self._next_pick + len(samples)) * total + samples
        self._next_pick += len(samples)
        drawn = _DrawnBatch(picks, position)
        self._drawn.append(drawn)
        if len(picks):
            self._new[int(picks[0])] = drawn
        return picks

    def own_numbers(self, picks: Ids) -> Ids:
        """Which samples they are."""
        return picks % self._total

    def worker_read_bytes(self, samples: Ids) -> int:
        """Bytes of these picks that workers read for themselves."""
        return super().worker_read_bytes(self.own_numbers(samples))

    def deliver(self, picks: Ids) -> None:
        """They have arrived: what was drawn up to them is forgotten when the engine looks again."""
        self._batches += 1
        self._samples += len(picks)
        if len(picks):
            self._delivered = max(self._delivered, int(picks[-1]))  # any of a batch's is above all before it

    def _forget(self) -> None:
        while self._drawn and self._is_delivered(self._drawn[0]):
            done = self._drawn.popleft()
            for number in done.blocks:
                del self._blocks[number]
            for pick in done.picks.tolist():
                self._places.pop(pick, None)  # one of a pass that was given up may have met nobody
                self._new.pop(pick, None)

    def _is_delivered(self, drawn: _DrawnBatch) -> bool:
        return not len(drawn.picks) or int(drawn.picks[0]) <= self._delivered

    @property
    def waiting(self) -> int:
        """Batches that are drawn and not delivered."""
        return sum(not self._is_delivered(drawn) for drawn in list(self._drawn))

    @property
    def counted(self) -> SampledBlockTable:
        """All so far."""
        with self._counting:
            return SampledBlockTable(self._batches, self._samples, self._reads, self._bytes_read, self._bytes_wanted)

    # -- the engine's side -----------------------------------------------------------------------------------

    def uses(self, block: int) -> int:
        """How many picks lie in it; none if it is of an epoch that was given up."""
        found = self._blocks.get(block)
        return 0 if found is None else len(found.rows)

    def blocks_of(self, samples: Ids) -> Ids:
        """The block of each pick; of a batch as it was drawn, if it is asked for the first time."""
        drawn = self._new.pop(int(samples[0]), None) if len(samples) else None
        if drawn is not None:
            self._forget()
            self._lay_out(drawn)
        blocks = (self._places[pick][0] for pick in samples.tolist())
        return np.array([block if self._blocks[block].reads else NO_BLOCK for block in blocks], np.int64)

    def _lay_out(self, drawn: _DrawnBatch) -> None:
        samples = self.own_numbers(drawn.picks)
        order = np.argsort(samples, kind="stable")
        places = drawn.position + order
        if self.straight:
            block = to_be_read_apart(self.dataset, samples[order])
            blocks: Iterable[SampledBlock] = [block]
            self._count(block.rows, reads=block.rows[:, PARTS::WIDTH].size)
        else:
            blocks = lay_out_samples(self.dataset, samples[order], self._block_bytes)
        drawn.blocks = tuple(self._add(block, drawn.picks[order[block.samples]], places) for block in blocks)

    def _add(self, block: SampledBlock, picks: Ids, places: Ids) -> int:
        number, self._next_block = self._next_block, self._next_block + 1
        # for the dice: a sample that comes again has another fate, the same in every run
        block.rows[:, 1] = places[block.samples]
        self._blocks[number] = block
        self._places.update((pick, (number, row)) for row, pick in enumerate(picks.tolist()))
        return number

    def block_bytes(self, block: int) -> int:
        """What it takes in the arena."""
        return self._blocks[block].size

    def read_block(self, block: int, into: memoryview) -> int:
        """Read it, in the order of place."""
        found = self._blocks.get(block)
        if found is None:
            return 0
        count = sum(self._files.read(shard, extents, into) for shard, extents in found.reads.items())
        self._count(found.rows, sum(map(len, found.reads.values())), count)
        return count

    def _count(self, rows: Ids, reads: int, bytes_read: int | None = None) -> None:
        """What these rows are about has been read, or will be; no more than that if it is not said how much."""
        wanted = int(rows[:, PARTS + 1 :: WIDTH].sum())
        with self._counting:
            self._reads += reads
            self._bytes_read += wanted if bytes_read is None else bytes_read
            self._bytes_wanted += wanted

    def task_rows(self, samples: Ids, slots: Ids, bases: Ids) -> Ids:
        """What workers are told."""
        rows = np.empty((len(samples), PARTS + WIDTH * self.dataset.parts[0].shape[1]), np.int64)
        for at, pick in enumerate(samples.tolist()):
            block, row = self._places[pick]
            rows[at] = self._blocks[block].rows[row]
        rows[:, 0] = slots
        rows[:, PARTS::WIDTH] += np.where(bases != NO_BLOCK_START, bases, 0)[:, None]
        return rows

    def rng_ids(self, samples: Ids) -> Ids:
        """Return the place in the epoch at which the sampler gave each sample.

        So a sample that the sampler gives twice gets other random draws the second time, the same in every run. A
        sample of an earlier batch, which replaces one of a batch that is bad as a whole, is not known any more; then
        the numbers of the samples themselves are returned.
        """
        places, blocks = self._places, self._blocks
        try:
            found = [places[sample] for sample in samples.tolist()]
            return np.array([blocks[block].rows[row, 1] for block, row in found], np.int64)
        except KeyError:
            return samples

    def close(self) -> None:
        """Close the shards."""
        self._files.close()

"""Blocks for batches that a sampler picks: its samples in the order of their place, neighbours in one read.

The engine wants samples and blocks with numbers of their own. A pick is numbered by how many came before it and by the
sample it is, so the same sample may come again; a block belongs to one batch. No number ever comes again, in no epoch.
A batch is known from when it is drawn until it, or one after it, is delivered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.errors import SettingError
from penstock.flow.files import OpenShards
from penstock.flow.read import GAP_BYTES, BlockLayout, Dataset, lay_out_samples
from penstock.flow.rows import PARTS, WIDTH

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Drawn:
    """One batch."""

    picks: Ids
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Block:
    shard: int
    layout: BlockLayout


class PickedSupply:
    """As `ShardSupply`, of samples that were picked. `draw` and `deliver` run in the training loop's thread."""

    def __init__(self, dataset: Dataset, block_bytes: int, *, direct: bool = False) -> None:
        for path, index in zip(dataset.paths, dataset.indexes, strict=True):
            if index.compression is not None:
                raise SettingError(
                    "a sampler cannot pick from a compressed shard, which is read from its start each time",
                    shard=path,
                    advice="Unpack it with 'penstock shards pack', or leave the order to the loader (shuffle=True)",
                )
        self._dataset = dataset
        self._block_bytes = block_bytes
        self._files = OpenShards(dataset.paths, dataset.indexes, direct=direct)
        self._ranges = [_ranges(dataset, shard) for shard in range(len(dataset.paths))]
        self._next_block = 0
        self._next_pick = 0
        self._drawn: deque[_Drawn] = deque()
        self._blocks: dict[int, _Block] = {}
        self._places: dict[int, tuple[int, int]] = {}
        """Of each pick: its block, and its row there."""

    def sample_sizes(self) -> Ids:
        """Bytes of the wanted parts of each sample."""
        dataset = self._dataset
        columns = zip(dataset.indexes, dataset.parts, strict=True)
        return np.concatenate([index.lengths[parts].sum(axis=1) for index, parts in columns])

    def draw(self, samples: Ids, position: int) -> Ids:
        """The numbers of these picks; `position` is how many the epoch had before them."""
        total = len(self._dataset)
        for wrong in samples[(samples < 0) | (samples >= total)]:
            raise SettingError(f"the sampler gave {wrong}, and there are {total} samples", stage="plan")
        picks = np.arange(self._next_pick, self._next_pick + len(samples)) * total + samples
        self._next_pick += len(samples)
        places = np.arange(position, position + len(samples))
        blocks = []
        order = np.argsort(samples, kind="stable")
        shards = np.searchsorted(self._dataset.firsts, samples[order], side="right") - 1
        for shard in np.unique(shards).tolist():
            of_shard = order[shards == shard]
            inside = samples[of_shard] - self._dataset.firsts[shard]
            for run in self._runs(shard, inside):
                mine = of_shard[run]
                blocks.append(self._add(shard, inside[run], picks[mine], places[mine]))
        self._drawn.append(_Drawn(picks, tuple(blocks)))
        return picks

    def _runs(self, shard: int, inside: Ids) -> Iterator[slice]:
        """Which of a shard's samples, that are in the order of their place, make a block together."""
        starts, ends = (column[inside] for column in self._ranges[shard])
        first = 0
        for place in range(1, len(inside)):
            far = starts[place] > ends[place - 1] + GAP_BYTES
            if far or ends[place] - starts[first] > self._block_bytes:
                yield slice(first, place)
                first = place
        yield slice(first, len(inside))

    def _add(self, shard: int, inside: Ids, picks: Ids, places: Ids) -> int:
        block, self._next_block = self._next_block, self._next_block + 1
        layout = lay_out_samples(self._dataset, shard, inside)
        layout.rows[:, 1] = places  # for the dice: a sample that comes again has another fate, the same in every run
        self._blocks[block] = _Block(shard, layout)
        self._places.update((pick, (block, row)) for row, pick in enumerate(picks.tolist()))
        return block

    def own_numbers(self, picks: Ids) -> Ids:
        """Which samples they are."""
        return picks % len(self._dataset)

    def deliver(self, picks: Ids) -> None:
        """They have arrived: what was drawn up to them is not needed any more."""
        last = int(picks.max(initial=-1))
        while self._drawn and (not len(self._drawn[0].picks) or self._drawn[0].picks[0] <= last):
            done = self._drawn.popleft()
            for block in done.blocks:
                del self._blocks[block]
            for pick in done.picks.tolist():
                del self._places[pick]

    # -- the engine's side -----------------------------------------------------------------------------------

    def uses(self, block: int) -> int:
        """How many picks lie in it; none if it is of an epoch that was given up."""
        found = self._blocks.get(block)
        return 0 if found is None else len(found.layout.rows)

    def blocks_of(self, samples: Ids) -> Ids:
        """The block of each pick."""
        return np.array([self._places[pick][0] for pick in samples.tolist()], np.int64)

    def block_bytes(self, block: int) -> int:
        """What it takes in the arena."""
        return self._blocks[block].layout.size

    def fill(self, block: int, into: memoryview) -> int:
        """Read it."""
        found = self._blocks.get(block)
        return 0 if found is None else self._files.read(found.shard, found.layout.extents, into)

    def rows(self, samples: Ids, slots: Ids, bases: Ids) -> Ids:
        """What workers are told."""
        rows = np.empty((len(samples), PARTS + WIDTH * self._dataset.parts[0].shape[1]), np.int64)
        for at, pick in enumerate(samples.tolist()):
            block, row = self._places[pick]
            rows[at] = self._blocks[block].layout.rows[row]
        rows[:, 0] = slots
        rows[:, PARTS::WIDTH] += bases[:, None]
        return rows

    def close(self) -> None:
        """Close the shards."""
        self._files.close()


def _ranges(dataset: Dataset, shard: int) -> tuple[Ids, Ids]:
    """First and last byte of each of a shard's samples, as far as its parts are wanted."""
    index, parts = dataset.indexes[shard], dataset.parts[shard]
    return index.offsets[parts].min(axis=1), (index.offsets[parts] + index.lengths[parts]).max(axis=1)

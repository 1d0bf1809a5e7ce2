"""Several sources in one epoch, by weight: which samples, how often, and in what order. Pure.

Of an epoch's samples each source gives its share by weight, from as many passes over it as that takes, the last one cut
short: so every sample of a source comes equally often, give or take one. A source's passes are dealt to the lanes block
by block as in `order`; inside a lane the sources are merged evenly, so every stretch of the epoch has nearly the same
mixture, and a lane has one block of each source in use at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import TaskRows
from penstock.data.order.blocks import BlockTable
from penstock.data.order.shuffle import deal, empty_lanes, interleave, places, shuffle_inside
from penstock.data.read.page_cache_read import PageCacheFiles
from penstock.data.read.reader import ShardBlockSource

Ids = NDArray[np.int64]


def shares(total: int, weights: Sequence[float]) -> Ids:
    """`total` shared out by weight, by largest remainder; of equal remainders the first."""
    parts = np.array(weights, np.float64) / max(weights)  # so that huge weights do not add up to infinity
    exact = total * parts / parts.sum()
    counts: Ids = np.floor(exact).astype(np.int64)
    most_lacking = np.argsort(counts - exact, kind="stable")
    counts[most_lacking[: total - int(counts.sum())]] += 1
    return counts


@dataclass(frozen=True)
class Mix:
    """The sources of an epoch.

    A sample that comes more than once has a number for each time, so that each is read, transformed and counted on its
    own: the first pass over all sources has the samples' own numbers, the others follow, source after source.
    """

    blocks: BlockTable
    """Of one pass over everything."""
    sources: Ids
    """First block of each source; one entry more than there are sources."""
    samples: Ids
    """How many samples each source gives to an epoch."""
    visits: BlockTable = field(init=False)
    """Of all passes: every block as often as it may be used."""
    origins: Ids = field(init=False)
    """For each visit, the block it is a visit to."""

    def __post_init__(self) -> None:
        again = [
            np.tile(np.arange(first, last), passes - 1)
            for first, last, passes in zip(self.sources[:-1], self.sources[1:], self._passes, strict=True)
        ]
        origins = np.concatenate((np.arange(len(self.blocks)), *again)).astype(np.int64)
        firsts = np.concatenate(([0], np.cumsum(self.blocks.counts[origins])))
        object.__setattr__(self, "origins", origins)
        object.__setattr__(self, "visits", BlockTable(firsts, self.blocks.shards[origins]))

    def __len__(self) -> int:
        return int(self.samples.sum())

    @property
    def _passes(self) -> Ids:
        """Over each source; one at least, so that every sample has a number."""
        sizes = np.diff(self.blocks.first_samples[self.sources])
        return np.maximum(1, -(-self.samples // sizes))

    def own_numbers(self, samples: Ids) -> Ids:
        """Of each sample, the number it has in the first pass."""
        visits = self.visits_of(samples)
        return samples - self.visits.first_samples[visits] + self.blocks.first_samples[self.origins[visits]]

    def visits_of(self, samples: Ids) -> Ids:
        """The visit each sample belongs to."""
        return np.searchsorted(self.visits.first_samples, samples, side="right") - 1

    def order(self, *, seed: int, epoch: int, lanes: int, shuffle: bool) -> Ids:
        """The samples of an epoch, in order, over all ranks."""
        heap = empty_lanes(lanes)
        drawn = [
            self._shuffled(source, seed, epoch, heap) if shuffle else self._in_file_order(source)
            for source in range(len(self.samples))
        ]
        samples, lane, when = (np.concatenate(column) for column in zip(*drawn, strict=True))
        merged = np.argsort(when, kind="stable")
        return interleave(samples[merged], lane[merged])

    def _shuffled(
        self, source: int, seed: int, epoch: int, heap: list[tuple[int, int]]
    ) -> tuple[Ids, Ids, NDArray[np.float64]]:
        """What a source gives: samples, the lane of each, and when each comes, from 0 to 1."""
        rng = np.random.Generator(np.random.PCG64([seed, epoch, source]))
        visits = self._visits_to(source)
        number_of_pass = np.arange(len(visits)) // (self.sources[source + 1] - self.sources[source])
        dealt = visits[np.lexsort((rng.random(len(visits)), number_of_pass))]
        counts = _cut(self.visits.counts[dealt], int(self.samples[source]))
        samples = shuffle_inside(self.visits, dealt, rng)[: self.samples[source]]
        lane = np.repeat(deal(counts, heap), counts)
        return samples, lane, _evenly(lane, rng.random(len(heap)))

    def _in_file_order(self, source: int) -> tuple[Ids, Ids, NDArray[np.float64]]:
        """The same without dice, in one lane."""
        visits = self._visits_to(source)
        counts = self.visits.counts[visits]
        starts = self.visits.first_samples[visits] - np.cumsum(counts) + counts
        samples = (np.arange(counts.sum()) + np.repeat(starts, counts))[: self.samples[source]]
        lane = np.zeros(len(samples), np.int64)
        return samples, lane, _evenly(lane, np.array([0.5]))

    def _visits_to(self, source: int) -> Ids:
        """All visits to a source, pass after pass."""
        first, last = self.sources[source : source + 2]
        return np.flatnonzero((self.origins >= first) & (self.origins < last))


def _cut(counts: Ids, total: int) -> Ids:
    """The same blocks with `total` samples in all: the last ones lose theirs."""
    return np.diff(np.minimum(np.cumsum(counts), total), prepend=0)


def _evenly(lane: Ids, phases: NDArray[np.float64]) -> NDArray[np.float64]:
    """Spread the samples of each lane over the epoch, from 0 to 1, as they come.

    Lanes of one phase would be in step: all of them would turn to the same source at the same time.
    """
    by_lane = np.argsort(lane, kind="stable")
    place = np.empty(len(lane), np.int64)
    place[by_lane] = places(lane[by_lane])
    when: NDArray[np.float64] = (place + phases[lane]) / np.bincount(lane)[lane]
    return when


class MixedBlockSource:
    """Shards as a mix visits them: a block that is visited again is another block to whoever reads it.

    So between two passes over a small source its blocks need not stay in memory.
    """

    def __init__(self, supply: ShardBlockSource, mix: Mix) -> None:
        self._supply = supply
        self._mix = mix
        self.blocks = mix.visits

    def look(self) -> None:
        """Decide who reads from now on."""
        self._supply.look()

    def straight_files(self) -> PageCacheFiles | None:
        """For workers, if they may have to read."""
        return self._supply.straight_files()

    def worker_read_bytes(self, samples: Ids) -> int:
        """Bytes of these that workers read for themselves."""
        return self._supply.worker_read_bytes(self._mix.own_numbers(samples))

    def blocks_of(self, samples: Ids) -> Ids:
        """The visit each sample is to be fetched with."""
        return self._supply.blocks_of(samples) if self._supply.straight else self.homes_of(samples)

    def homes_of(self, samples: Ids) -> Ids:
        """The visit each sample belongs to."""
        return self._mix.visits_of(samples)

    def block_bytes(self, block: int) -> int:
        """As large as the block it is a visit to."""
        return self._supply.block_bytes(int(self._mix.origins[block]))

    def block_sizes(self) -> Ids:
        """About how much each takes."""
        return self._supply.block_sizes()[self._mix.origins]

    def read_block(self, block: int, into: memoryview) -> int:
        """Read that block."""
        return self._supply.read_block(int(self._mix.origins[block]), into)

    def task_rows(self, samples: Ids, slots: Ids, bases: Ids) -> TaskRows:
        """Where the parts lie; the sample's number is that of the visit, so that a transform's dice fall anew."""
        rows = self._supply.task_rows(self._mix.own_numbers(samples), slots, bases)
        rows[:, 1] = samples
        return rows

    def rng_ids(self, samples: Ids) -> Ids:
        """Return the visits' sample numbers: a sample that is repeated in an epoch gets new random draws each time."""
        return samples

    def close(self) -> None:
        """Close the shards."""
        self._supply.close()

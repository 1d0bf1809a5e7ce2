"""The order of an epoch over several groups of shards, by weight: which samples, how often, and in what order. Pure.

Each group gives its share of an epoch's samples by weight, in as many rounds over the group as that takes, the last
one cut short. So every sample of a group is delivered equally often, give or take one. The rounds are dealt to the
lanes block by block as in `shuffle`; inside a lane the groups are merged evenly, so every section of the epoch has
nearly the same mixture, and a lane has one block of each group in use at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.core.types import Floats, Ids
from penstock.data.order.blocks import BlockTable
from penstock.data.order.lanes import EpochOrder
from penstock.data.order.shuffle import count_equal_before, deal, empty_lanes, interleave, shuffle_within_blocks


def share_by_weight(total: int, weights: Sequence[float]) -> Ids:
    """Divide `total` by weight. What rounding leaves over goes to the largest remainders, the first among equals."""
    relative = np.array(weights, np.float64) / max(weights)  # so that huge weights do not add up to infinity
    exact = total * relative / relative.sum()
    counts: Ids = np.floor(exact).astype(np.int64)
    by_remainder = np.argsort(counts - exact, kind="stable")
    counts[by_remainder[: total - int(counts.sum())]] += 1
    return counts


@dataclass(frozen=True)
class Mix:
    """The groups of shards that an epoch draws from, and how many samples each gives.

    A visit is one use of a block in an epoch; a block of a group with several rounds has several visits. Samples are
    numbered by visit, so that each repetition of a sample is read, transformed and counted on its own. The visits of
    the first round over all groups come first, and there a sample has its own number; the other rounds follow, group
    after group.
    """

    blocks: BlockTable
    """The blocks of all groups."""
    first_blocks: Ids
    """First block of each group, with one entry more than there are groups."""
    samples: Ids
    """How many samples each group gives to an epoch."""
    visits: BlockTable = field(init=False)
    """Every block, as often as an epoch may use it."""
    visited_blocks: Ids = field(init=False)
    """The block of each visit."""

    def __post_init__(self) -> None:
        later_rounds = [
            np.tile(np.arange(first, last), rounds - 1)
            for first, last, rounds in zip(self.first_blocks[:-1], self.first_blocks[1:], self._rounds, strict=True)
        ]
        visited_blocks = np.concatenate((np.arange(len(self.blocks)), *later_rounds)).astype(np.int64)
        first_samples = np.concatenate(([0], np.cumsum(self.blocks.counts[visited_blocks])))
        object.__setattr__(self, "visited_blocks", visited_blocks)
        object.__setattr__(self, "visits", BlockTable(first_samples, self.blocks.shards[visited_blocks]))

    def __len__(self) -> int:
        return int(self.samples.sum())

    @property
    def _rounds(self) -> Ids:
        """Rounds over each group; at least one, so that every sample has a number."""
        sizes = np.diff(self.blocks.first_samples[self.first_blocks])
        return np.maximum(1, -(-self.samples // sizes))

    def sample_numbers(self, samples: Ids) -> Ids:
        """Return each sample's own number, which is the one it has in the first round."""
        visits = self.visits_of(samples)
        return samples - self.visits.first_samples[visits] + self.blocks.first_samples[self.visited_blocks[visits]]

    def visits_of(self, samples: Ids) -> Ids:
        """Return the visit that each sample belongs to."""
        return np.searchsorted(self.visits.first_samples, samples, side="right") - 1

    def order(self, *, seed: int, epoch: int, lanes: int, shuffle: bool) -> EpochOrder:
        """Return the samples of an epoch, in order, over all ranks."""
        heap = empty_lanes(lanes)
        columns = [
            self._shuffled(group, seed, epoch, heap) if shuffle else self._in_file_order(group)
            for group in range(len(self.samples))
        ]
        samples, lane, when = (np.concatenate(column) for column in zip(*columns, strict=True))
        merged = np.argsort(when, kind="stable")
        return interleave(samples[merged], lane[merged], lanes if shuffle else 1)

    def _shuffled(self, group: int, seed: int, epoch: int, heap: list[tuple[int, int]]) -> tuple[Ids, Ids, Floats]:
        """Return a group's samples, the lane of each, and the time in the epoch at which each comes, from 0 to 1."""
        rng = np.random.Generator(np.random.PCG64([seed, epoch, group]))
        visits = self._visits_to(group)
        rounds = np.arange(len(visits)) // (self.first_blocks[group + 1] - self.first_blocks[group])
        visit_order = visits[np.lexsort((rng.random(len(visits)), rounds))]
        counts = _truncate(self.visits.counts[visit_order], int(self.samples[group]))
        samples = shuffle_within_blocks(self.visits, visit_order, rng)[: self.samples[group]]
        lane = np.repeat(deal(counts, heap), counts)
        return samples, lane, _spread_evenly(lane, rng.random(len(heap)))

    def _in_file_order(self, group: int) -> tuple[Ids, Ids, Floats]:
        """Return the same columns without shuffling, all in one lane."""
        visits = self._visits_to(group)
        counts = self.visits.counts[visits]
        starts = self.visits.first_samples[visits] - np.cumsum(counts) + counts
        samples = (np.arange(counts.sum()) + np.repeat(starts, counts))[: self.samples[group]]
        lane = np.zeros(len(samples), np.int64)
        return samples, lane, _spread_evenly(lane, np.array([0.5]))

    def _visits_to(self, group: int) -> Ids:
        """Return all visits to a group's blocks, round after round."""
        first, last = self.first_blocks[group : group + 2]
        return np.flatnonzero((self.visited_blocks >= first) & (self.visited_blocks < last))


def _truncate(counts: Ids, total: int) -> Ids:
    """Return the counts reduced at their end so that they sum to `total`."""
    return np.diff(np.minimum(np.cumsum(counts), total), prepend=0)


def _spread_evenly(lane: Ids, phases: Floats) -> Floats:
    """Return a time from 0 to 1 for each sample, so that each lane's samples are spread evenly, in their order.

    Each lane has its own phase. With equal phases all lanes would switch to the same group at the same time.
    """
    by_lane = np.argsort(lane, kind="stable")
    turn = np.empty(len(lane), np.int64)
    turn[by_lane] = count_equal_before(lane[by_lane])
    when: Floats = (turn + phases[lane]) / np.bincount(lane)[lane]
    return when

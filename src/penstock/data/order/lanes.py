"""The order of an epoch with the lane of each sample, and the division of its steps between ranks, by lanes.

A step is the next `batch_size × world_size` samples of the order, whatever the number of ranks, so a position counts
samples over all ranks. Which rank gets which of them depends on the lanes, so that a block is read by as few ranks as
possible:

1. Lane l belongs to rank l mod world_size. Where the number of ranks divides the lanes, and as long as all lanes have
   samples, every rank has as many samples of its lanes in a step as a batch needs, and each block is read by one rank.
2. Lanes that are left over, and samples of which a rank has more than a batch needs, are divided between the ranks that
   lack samples, lane after lane. So a block of such a lane is read by few ranks, usually two.

Without shuffling there is one lane, and each rank gets consecutive samples. An order without lanes is divided sample by
sample: rank r gets every world_size-th of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from penstock.core.types import Ids
from penstock.data.order.ranks import RankShare


@dataclass(frozen=True)
class EpochOrder:
    """The number of every sample of an epoch, in order, over all ranks, and the lane that it comes from."""

    samples: Ids
    lanes: int | None = None
    """The number of lanes, which give one sample each in turn; None where samples are not read in blocks."""
    tail_lanes: Ids = field(default_factory=lambda: np.zeros(0, np.int64))
    """The lane of each of the last samples, from where the first lane is empty; before, lanes give samples in turn."""

    def __len__(self) -> int:
        return len(self.samples)

    def first(self, count: int) -> EpochOrder:
        """Return the order of an epoch that ends after so many samples."""
        tail = max(0, min(count, len(self)) - self._tail_begin)
        return EpochOrder(self.samples[:count], self.lanes, self.tail_lanes[:tail])

    def share(self, begin: int, end: int, ranks: RankShare) -> Ids:
        """Return the samples from position `begin` to `end` that a rank gets, in order.

        Where they cannot be divided evenly, the last ranks get one sample less.
        """
        samples = self.samples[begin:end]
        if self.lanes is None:
            return samples[ranks.rank :: ranks.world_size]
        evenly = self.lanes % ranks.world_size == 0 and len(samples) % ranks.world_size == 0
        if evenly and (end <= self._tail_begin or ranks.world_size == 1):  # what `_places` would find, at less cost
            return samples[(ranks.rank - begin) % ranks.world_size :: ranks.world_size]
        return samples[self._places(begin, begin + len(samples), ranks)]

    @property
    def _tail_begin(self) -> int:
        return len(self.samples) - len(self.tail_lanes)

    def _lanes_of(self, begin: int, end: int) -> Ids:
        """Return the lane of each of these positions."""
        assert self.lanes is not None
        tail_begin = self._tail_begin
        in_turn = np.arange(begin, min(end, tail_begin)) % self.lanes
        return np.concatenate((in_turn, self.tail_lanes[max(0, begin - tail_begin) : max(0, end - tail_begin)]))

    def _places(self, begin: int, end: int, ranks: RankShare) -> Ids:
        """Return which of the positions from `begin` to `end` a rank gets, counted from `begin`."""
        assert self.lanes is not None
        world_size = ranks.world_size
        lane = self._lanes_of(begin, end)
        needed = (end - begin + np.arange(world_size)[::-1]) // world_size  # samples of each rank
        owner = np.where(lane < self.lanes - self.lanes % world_size, lane % world_size, world_size)
        found = np.bincount(owner, minlength=world_size + 1)
        by_owner = np.lexsort((lane, owner))
        turn = np.arange(len(lane)) - np.repeat(np.cumsum(found) - found, found)
        is_owners = turn < np.repeat(np.append(needed, 0), found)
        own = by_owner[is_owners & (owner[by_owner] == ranks.rank)]
        shared = by_owner[~is_owners]
        shared = shared[np.argsort(lane[shared], kind="stable")]
        missing = np.maximum(needed - found[:world_size], 0)
        first = int(missing[: ranks.rank].sum())
        return np.sort(np.concatenate((own, shared[first : first + missing[ranks.rank]])))

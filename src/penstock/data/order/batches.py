"""Cuts an epoch's order into batches, the same number for every rank.

Step t of an epoch is the next `batch_size × world_size` samples of the global order; rank r takes every
world_size-th of them. So for a fixed global batch, step t holds the same samples whatever the number of ranks. At the
end, `drop_last` drops what does not fill a step on all ranks; otherwise the last step is shared out evenly, and padded
with the epoch's first samples where it does not divide: never more than world_size − 1 of them, and they are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.data.order.shuffle import RankShare

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepCount:
    """How many batches every rank gets, and what became of the samples that did not divide."""

    batches: int
    dropped: int
    """Samples, over all ranks, left out at the end of the epoch."""
    padded: int
    """Samples, over all ranks, delivered a second time."""


@dataclass(frozen=True, slots=True)
class BatchIndices:
    """One batch of this rank."""

    samples: Ids
    end: int
    """The epoch's position after it: samples delivered so far, over all ranks."""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """How an order is cut into batches."""

    batch_size: int = 1
    drop_last: bool = False
    ranks: RankShare = field(default_factory=RankShare)

    def count(self, samples: int) -> int:
        """Batches that every rank gets."""
        return count_steps(samples, self.batch_size, self.ranks.world_size, self.drop_last).batches

    def samples(self, samples: int) -> int:
        """Samples that every rank gets."""
        steps = count_steps(samples, self.batch_size, self.ranks.world_size, self.drop_last)
        return (samples - steps.dropped + steps.padded) // self.ranks.world_size

    def portions(self, order: Ids, position: int) -> Iterator[BatchIndices]:
        """This rank's batches of the samples from `position` on."""
        each = self.batch_size * self.ranks.world_size
        batches = rank_batches(order, position, self.batch_size, self.ranks, self.drop_last)
        for number, samples in enumerate(batches, 1):
            yield BatchIndices(samples, min(len(order), position + number * each))


def count_steps(samples: int, batch_size: int, world_size: int, drop_last: bool) -> StepCount:
    """The rule above, in numbers."""
    whole, rest = divmod(samples, batch_size * world_size)
    if drop_last or rest == 0:
        return StepCount(whole, rest, 0)
    return StepCount(whole + 1, 0, -rest % world_size)


def rank_batches(order: Ids, position: int, batch_size: int, ranks: RankShare, drop_last: bool) -> Iterator[Ids]:
    """This rank's batches of the samples from `position` on."""
    steps = count_steps(len(order) - position, batch_size, ranks.world_size, drop_last)
    each = batch_size * ranks.world_size
    for step in range(steps.batches):
        samples = order[position + step * each : position + (step + 1) * each]
        if len(samples) % ranks.world_size:
            samples = np.concatenate((samples, np.resize(order, steps.padded)))  # goes round if there are too few
        yield samples[ranks.rank :: ranks.world_size]

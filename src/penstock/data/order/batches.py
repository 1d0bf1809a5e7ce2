"""Cuts an epoch's order into batches, the same number for every rank.

Step t of an epoch is the next `batch_size × world_size` samples of the global order, which `lanes` divides between the
ranks. So for a fixed global batch size, step t holds the same samples whatever the number of ranks.
With `drop_last`, the samples at the end that do not fill a step on all ranks are dropped. Otherwise the last step is
divided evenly between the ranks, and where that is not possible it is padded with the epoch's first samples. At most
world_size − 1 samples are added, one at the end of a batch, and they are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from penstock.core.contracts import BatchRequest
from penstock.core.types import Ids
from penstock.data.order.lanes import EpochOrder
from penstock.data.order.ranks import RankShare


@dataclass(frozen=True, slots=True)
class StepCount:
    """How many batches every rank gets, and how many samples were dropped or repeated for that."""

    batches: int
    dropped: int
    """Samples, over all ranks, left out at the end of the epoch."""
    padded: int
    """Samples, over all ranks, delivered a second time."""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """How an order is cut into batches."""

    batch_size: int = 1
    drop_last: bool = False
    ranks: RankShare = field(default_factory=RankShare)

    def num_batches(self, samples: int) -> int:
        """Return the number of batches that every rank gets."""
        return count_steps(samples, self.batch_size, self.ranks.world_size, self.drop_last).batches

    def samples_per_rank(self, samples: int) -> int:
        """Return the number of samples that every rank gets."""
        steps = count_steps(samples, self.batch_size, self.ranks.world_size, self.drop_last)
        return (samples - steps.dropped + steps.padded) // self.ranks.world_size

    def batch_requests(self, order: EpochOrder, epoch: int, position: int) -> Iterator[BatchRequest]:
        """Yield this rank's batches of the samples from `position` on."""
        step_samples = self.batch_size * self.ranks.world_size
        batches = rank_batches(order, position, self.batch_size, self.ranks, self.drop_last)
        for number, (samples, padding) in enumerate(batches, 1):
            end = min(len(order), position + number * step_samples)
            yield BatchRequest(epoch, samples, end, padding=padding)


def one_worker_request(request: BatchRequest) -> BatchRequest:
    """Return the same request, to be made by one worker, because only a collate_fn knows how samples are combined."""
    return replace(request, one_worker=True)


def count_steps(samples: int, batch_size: int, world_size: int, drop_last: bool) -> StepCount:
    """Count the steps of an epoch, and the samples that are dropped or padded at its end."""
    whole, rest = divmod(samples, batch_size * world_size)
    if drop_last or rest == 0:
        return StepCount(whole, rest, 0)
    return StepCount(whole + 1, 0, -rest % world_size)


def rank_batches(
    order: EpochOrder, position: int, batch_size: int, ranks: RankShare, drop_last: bool
) -> Iterator[tuple[Ids, int]]:
    """Yield the samples of each of this rank's batches, from `position` on, and how many at its end are padding."""
    steps = count_steps(len(order) - position, batch_size, ranks.world_size, drop_last)
    step_samples = batch_size * ranks.world_size
    for step in range(steps.batches):
        begin = position + step * step_samples
        end = min(len(order), begin + step_samples)
        samples = order.share(begin, end, ranks)
        padded = ranks.rank - (ranks.world_size - steps.padded)  # each of the last ranks lacks one sample
        if (end - begin) % ranks.world_size and padded >= 0:
            first_samples = np.resize(order.samples, steps.padded)  # repeats the order if it has fewer samples
            yield np.append(samples, first_samples[padded]), 1
        else:
            yield samples, 0

"""Batches of samples of about the same length: little padding, and ranks that finish a step at about the same time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from penstock.core.types import Ids
from penstock.data.order.checkpoint import Identity
from penstock.data.order.ranks import find_ranks
from penstock.errors import SettingError
from penstock.samplers.epoch_batches import OrderedBatches, check_count
from penstock.samplers.table import MetadataTable


class BucketSampler(OrderedBatches):
    """Every sample once an epoch, in batches of similar length; the order of the batches is random.

    The samples are shuffled, and sorted by length within the samples of `window` steps: a larger window pads less and
    shuffles less. All ranks of a step take neighbouring lengths. Samples that do not fill a step on all ranks come
    last, as a smaller batch that may repeat up to one sample less than there are ranks, or are left out with
    `drop_last`, other ones in each epoch.
    """

    def __init__(
        self,
        table: MetadataTable,
        batch_size: int,
        *,
        column: str = "length",
        window: int = 50,
        drop_last: bool = False,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        check_count(window=window)
        super().__init__(batch_size, seed, find_ranks(rank, world_size), drop_last=drop_last)
        self._lengths = table.numbers(column)
        if (self._lengths < 0).any():
            raise SettingError(f"lengths below 0 in column {column!r}")
        self._window = window
        self._fingerprint = table.fingerprint
        self.check_any()

    @property
    def samples(self) -> int:
        """Number of samples of the table."""
        return len(self._lengths)

    def order(self, epoch: int) -> Ids:
        """Return steps of similar lengths in random order, then the samples that do not fill a step."""
        rng = self.rng(epoch)
        shuffled = rng.permutation(self.samples)
        step = self.batch_size * self.ranks.world_size
        steps = self.samples // step
        full, rest = shuffled[: steps * step], shuffled[steps * step :]
        windows = np.arange(len(full)) // (self._window * step)
        by_length = full[np.lexsort((self._lengths[full], windows))].reshape(steps, step)
        return np.concatenate((by_length[rng.permutation(steps)].ravel(), rest))

    def identity(self) -> Identity:
        """Return what determines the order: with the same global batch, a step is the same on any number of ranks."""
        return {
            "kind": type(self).__name__,
            "seed": self.seed,
            "step": self.batch_size * self.ranks.world_size,
            "window": self._window,
            "samples": self.samples,
            "fingerprint": self._fingerprint,
        }

    def padding(self, epoch: int = 0) -> float:
        """Return the fraction of an epoch's batches on this rank that is padding, if each is padded to its longest."""
        return _padding(self._lengths, [request.samples for request in self.batch_requests(epoch, 0)])

    def __str__(self) -> str:
        random_batches = np.array_split(self.rng(0).permutation(self.samples), max(1, self.samples // self.batch_size))
        return (
            f"{self.samples:,} samples, {len(self):,} batches of {self.batch_size} on each of "
            f"{self.ranks.world_size} ranks; {self.padding():.1%} padding, in random batches "
            f"{_padding(self._lengths, random_batches):.1%}"
        )


def _padding(lengths: NDArray[np.float64], batches: list[Ids]) -> float:
    padded = sum(float(lengths[batch].max()) * len(batch) for batch in batches)
    return 1 - sum(float(lengths[batch].sum()) for batch in batches) / padded if padded else 0.0

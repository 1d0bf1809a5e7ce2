"""Samplers that draw each sample in proportion to its weight, or each class equally often, however rare it is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.core.types import Ids
from penstock.data.order.checkpoint import Identity
from penstock.data.order.ranks import find_ranks
from penstock.errors import SettingError
from penstock.samplers.epoch_batches import OrderedBatches
from penstock.samplers.table import Column, MetadataTable


class WeightedSampler(OrderedBatches):
    """Batches in which sample i occurs n · wᵢ / Σw times an epoch, rounded up or down; `weights` may name a column.

    An epoch is as long as the dataset, rounded up to whole batches; on several ranks up to one batch less than there
    are ranks is left out. A sample of weight 0 never occurs.
    """

    def __init__(
        self,
        table: MetadataTable,
        weights: str | Sequence[float] | NDArray[np.float64],
        batch_size: int,
        *,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        super().__init__(batch_size, seed, find_ranks(rank, world_size), drop_last=True)
        all_weights = table.numbers(weights) if isinstance(weights, str) else np.asarray(weights, np.float64)
        _check(all_weights, len(table))
        self._members: Ids = np.flatnonzero(all_weights > 0)
        self._weights = all_weights[self._members]
        self._samples = -(-len(table) // batch_size) * batch_size
        self._fingerprint = MetadataTable({"weight": Column(all_weights)}).fingerprint
        self.check_any()

    @property
    def samples(self) -> int:
        """Number of draws in an epoch."""
        return self._samples

    def order(self, epoch: int) -> Ids:
        """Draw evenly spaced points on a line of which each sample takes a length: no sample is favoured by chance."""
        rng = self.rng(epoch)
        members = self.shuffled(rng)
        ends = np.cumsum(self._weights[members])
        points = (np.arange(self.samples) + rng.random()) * (ends[-1] / self.samples)
        # the minimum guards against a rounding error at the end of the line
        drawn = np.minimum(np.searchsorted(ends, points, side="right"), len(ends) - 1)
        return rng.permutation(self._members[members[drawn]])

    def shuffled(self, rng: np.random.Generator) -> Ids:
        """Return the order of the samples on that line."""
        return rng.permutation(len(self._members))

    def identity(self) -> Identity:
        """Return what determines the order: seed, batch size and all weights."""
        return {
            "kind": type(self).__name__,
            "seed": self.seed,
            "batch_size": self.batch_size,
            "samples": self.samples,
            "fingerprint": self._fingerprint,
        }

    def __str__(self) -> str:
        draws = self.samples * self._weights / self._weights.sum()
        return (
            f"{len(self._members):,} samples of weight above 0, each {draws.min():.3g} to {draws.max():.3g} times an "
            f"epoch; {len(self):,} batches of {self.batch_size} on each of {self.ranks.world_size} ranks"
        )


class BalancedSampler(WeightedSampler):
    """Batches with each class equally often, up to one draw, and each sample of a class likewise."""

    def __init__(
        self,
        table: MetadataTable,
        batch_size: int,
        *,
        column: str = "label",
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self._classes, values = table.column(column).codes()
        counts = np.bincount(self._classes, minlength=len(values))
        weights = 1 / counts[self._classes]
        super().__init__(table, weights, batch_size, seed=seed, rank=rank, world_size=world_size)
        self._counts = counts

    def shuffled(self, rng: np.random.Generator) -> Ids:
        """Return the samples class by class, so that each class is a part of the line with its share of points."""
        return np.argsort(self._classes + rng.random(len(self._classes)))

    def __str__(self) -> str:
        each = self.samples / len(self._counts)
        return (
            f"{len(self._counts):,} classes of {self._counts.min():,} to {self._counts.max():,} samples, each "
            f"{each:.3g} times an epoch; {len(self):,} batches of {self.batch_size} "
            f"on each of {self.ranks.world_size} ranks"
        )


def _check(weights: NDArray[np.float64], samples: int) -> None:
    if weights.shape != (samples,):
        raise SettingError(f"{samples} samples need as many weights, not {list(weights.shape)}")
    if not np.isfinite(weights).all() or (weights < 0).any() or not (weights > 0).any():
        raise SettingError("weights must be finite, not below 0, and not all 0")

"""The base classes of all batch samplers: epochs, ranks, saving and resuming. Subclasses choose the samples.

    DataLoader(dataset, batch_sampler=sampler)          penstock.Loader(dataset, batch_sampler=sampler)

Each iteration is the next epoch, unless `set_epoch` sets it; the order depends on the seed, the epoch and the metadata.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np

from penstock.core.contracts import BatchRequest
from penstock.core.types import Ids
from penstock.data.order.batches import BatchPlan
from penstock.data.order.checkpoint import Identity, Position, read_state, write_state
from penstock.data.order.lanes import EpochOrder
from penstock.data.order.ranks import RankShare
from penstock.errors import SettingError


class EpochBatches(ABC):
    """A batch sampler: an iterable of lists of sample numbers, this rank's batches of an epoch."""

    def __init__(self, batch_size: int, seed: int, ranks: RankShare, *, drop_last: bool = True) -> None:
        check_count(batch_size=batch_size)
        if seed < 0:
            raise SettingError(f"seed={seed} is below 0")
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.seed = seed
        self.ranks = ranks
        self._position = self._start = Position()
        """Position after the last batch that was drawn, and where this iteration of the epoch began."""

    @abstractmethod
    def batch_requests(self, epoch: int, position: int) -> Iterator[BatchRequest]:
        """Yield this rank's batches of the epoch, from that position on."""

    @abstractmethod
    def identity(self) -> Identity:
        """Return what determines the order of an epoch."""

    @property
    @abstractmethod
    def positions(self) -> int:
        """Number of samples of an epoch that are delivered, over all ranks."""

    @abstractmethod
    def __len__(self) -> int: ...

    def rng(self, epoch: int) -> np.random.Generator:
        """Return the random generator of an epoch, the same on every rank."""
        return np.random.Generator(np.random.PCG64([self.seed, epoch]))

    @property
    def epoch(self) -> int:
        """The epoch that was begun last; before the first iteration, the epoch that it will be."""
        return self._position.epoch

    @property
    def sampler(self) -> Self:
        """The object with `set_epoch` for Lightning and MMEngine, which expect it under this name."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that epoch, from its start; or from a loaded state, if that is of the same epoch."""
        if epoch < 0:
            raise SettingError(f"epoch {epoch} is below 0")
        if epoch != self._position.epoch or self._position.in_progress:
            self._position = self._start = Position(epoch)

    def __iter__(self) -> Iterator[list[int]]:
        """Begin an epoch when its first batch is drawn, because DataLoader makes two iterators and uses one."""
        position = Position(self._position.epoch + 1) if self._position.in_progress else self._position
        self._position = self._start = position = Position(position.epoch, position.samples, in_progress=True)
        for request in self.batch_requests(position.epoch, position.samples):
            if self._position is position:  # no other epoch has been begun or set meanwhile
                self._position = position = Position(position.epoch, request.end, in_progress=True)
            yield request.samples.tolist()

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Return the position after that many batches of this iteration, as the training loop counts them on each rank.

        Without a number, it is the position after the batches that were drawn; a loader with workers draws ahead of the
        training loop.
        """
        samples = self._position.samples
        if batches is not None:
            samples = self._start.samples + batches * self.batch_size * self.ranks.world_size
        epoch = self._position.epoch
        position = Position(epoch, samples) if samples < self.positions else Position(epoch + 1)
        return write_state(position, self.identity())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, on the present number of ranks."""
        position = read_state(state, self.identity())
        if position.samples % self.batch_size:
            raise SettingError(f"a state at sample {position.samples} is not between two batches of {self.batch_size}")
        self._position = self._start = position


class OrderedBatches(EpochBatches):
    """A batch sampler that cuts batches from an order of all samples, divided between the ranks as a Loader does."""

    def __init__(self, batch_size: int, seed: int, ranks: RankShare, *, drop_last: bool) -> None:
        super().__init__(batch_size, seed, ranks, drop_last=drop_last)
        self._batch_plan = BatchPlan(batch_size, drop_last, ranks)

    @abstractmethod
    def order(self, epoch: int) -> Ids:
        """Return the samples of an epoch in order, over all ranks."""

    @property
    @abstractmethod
    def samples(self) -> int:
        """Number of samples in that order."""

    @property
    def positions(self) -> int:
        """Number of samples without those that are dropped."""
        step = self.batch_size * self.ranks.world_size
        return self.samples - (self.samples % step if self.drop_last else 0)

    def batch_requests(self, epoch: int, position: int) -> Iterator[BatchRequest]:
        """Yield this rank's batches of the order, from that position on."""
        return self._batch_plan.batch_requests(EpochOrder(self.order(epoch)), epoch, position)

    def __len__(self) -> int:
        return self._batch_plan.num_batches(self.samples)

    def check_any(self) -> None:
        """Refuse settings that give an epoch without a batch."""
        if not len(self):
            raise SettingError(
                f"{self.samples} samples make no batch of {self.batch_size} on each of {self.ranks.world_size} ranks"
            )


def check_count(**counts: int) -> None:
    """Refuse a setting that is not a whole number above 0."""
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
            raise SettingError(f"{name}={count!r} is not a whole number above 0")

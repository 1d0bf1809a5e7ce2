"""What all batch samplers have in common: epochs, ranks and a place to go on from. Which samples, each says itself.

    DataLoader(dataset, batch_sampler=sampler)          penstock.Loader(dataset, batch_sampler=sampler)

Every pass is the next epoch, unless `set_epoch` says which; the order depends on the seed, the epoch and the metadata.
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
from penstock.data.order.ranks import RankShare
from penstock.errors import SettingError


class EpochBatches(ABC):
    """Lists of sample numbers, this rank's batches of an epoch."""

    def __init__(self, batch_size: int, seed: int, ranks: RankShare, *, drop_last: bool = True) -> None:
        check_count(batch_size=batch_size)
        if seed < 0:
            raise SettingError(f"seed={seed} is below 0")
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.seed = seed
        self.ranks = ranks
        self._at = self._begun = Position()

    @abstractmethod
    def batch_requests(self, epoch: int, position: int) -> Iterator[BatchRequest]:
        """This rank's batches of the epoch, from that position on."""

    @abstractmethod
    def identity(self) -> Identity:
        """What decides the order of an epoch."""

    @property
    @abstractmethod
    def positions(self) -> int:
        """Samples of an epoch that are delivered, over all ranks."""

    @abstractmethod
    def __len__(self) -> int: ...

    def rng(self, epoch: int) -> np.random.Generator:
        """The dice of an epoch, the same on every rank."""
        return np.random.Generator(np.random.PCG64([self.seed, epoch]))

    @property
    def epoch(self) -> int:
        """Of the pass begun last; before it, the one that comes first."""
        return self._at.epoch

    @property
    def sampler(self) -> Self:
        """Where Lightning and MMEngine look for `set_epoch`."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """The next pass is that epoch, from its start, or from where a state says if it is of that epoch."""
        if epoch < 0:
            raise SettingError(f"epoch {epoch} is below 0")
        if epoch != self._at.epoch or self._at.in_progress:
            self._at = self._begun = Position(epoch)

    def __iter__(self) -> Iterator[list[int]]:
        """A pass begins when its first batch is drawn: DataLoader asks for two iterators, and uses one."""
        at = Position(self._at.epoch + 1) if self._at.in_progress else self._at
        self._at = self._begun = at = Position(at.epoch, at.samples, in_progress=True)
        for request in self.batch_requests(at.epoch, at.samples):
            if self._at is at:  # nobody has begun or set another epoch meanwhile
                self._at = at = Position(at.epoch, request.end, in_progress=True)
            yield request.samples.tolist()

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """The place after so many batches of this pass, as your loop counts them on each rank.

        Without a number, after those that were drawn: a loader with workers draws ahead of the loop.
        """
        position = self._at.samples
        if batches is not None:
            position = self._begun.samples + batches * self.batch_size * self.ranks.world_size
        at = Position(self._at.epoch, position) if position < self.positions else Position(self._at.epoch + 1)
        return write_state(at, self.identity())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, on as many ranks as there are now."""
        at = read_state(state, self.identity())
        if at.samples % self.batch_size:
            raise SettingError(f"a state at sample {at.samples} is not between two batches of {self.batch_size}")
        self._at = self._begun = at


class OrderedBatches(EpochBatches):
    """Batches cut from an order of all samples, shared out over the ranks as a Loader does it."""

    def __init__(self, batch_size: int, seed: int, ranks: RankShare, *, drop_last: bool) -> None:
        super().__init__(batch_size, seed, ranks, drop_last=drop_last)
        self.batch_plan = BatchPlan(batch_size, drop_last, ranks)

    @abstractmethod
    def order(self, epoch: int) -> Ids:
        """The samples of an epoch, over all ranks."""

    @property
    @abstractmethod
    def samples(self) -> int:
        """How many there are in that order."""

    @property
    def positions(self) -> int:
        """Without those that are dropped."""
        each = self.batch_size * self.ranks.world_size
        return self.samples - (self.samples % each if self.drop_last else 0)

    def batch_requests(self, epoch: int, position: int) -> Iterator[BatchRequest]:
        """Of the order."""
        return self.batch_plan.batch_requests(self.order(epoch), epoch, position)

    def __len__(self) -> int:
        return self.batch_plan.num_batches(self.samples)

    def check_any(self) -> None:
        """An epoch without a batch is refused."""
        if not len(self):
            raise SettingError(
                f"{self.samples} samples make no batch of {self.batch_size} on each of {self.ranks.world_size} ranks"
            )


def check_count(**counts: int) -> None:
    """Whole numbers above 0."""
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
            raise SettingError(f"{name}={count!r} is not a whole number above 0")

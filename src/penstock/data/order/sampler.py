"""The batches of an epoch of numbered samples: in Penstock's own order, or by the user's sampler or batch sampler."""

from __future__ import annotations

import logging
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np

from penstock.core.contracts import BatchRequest
from penstock.core.types import Ids
from penstock.data.order.batches import BatchPlan
from penstock.data.order.checkpoint import Order
from penstock.data.order.lanes import EpochOrder
from penstock.data.order.sampler_state import SamplerState
from penstock.errors import SettingError

log = logging.getLogger("penstock")


class BatchOrder(Protocol):
    """The batches of any epoch, from any position, and the settings they depend on."""

    def batch_requests(self, epoch: int, position: int, order: dict[str, Any]) -> Iterator[BatchRequest]:
        """Yield the epoch's batches from that position on. The skipped samples are not read.

        `order` is what a checkpoint holds about the order of the epoch. What a checkpoint of the epoch must hold is
        added to it when the first batch is drawn.
        """
        ...

    def next_order(self) -> Order:
        """Return what a checkpoint must hold about the order of an epoch that has not begun."""
        ...

    def warn_if_unrepeatable(self) -> None:
        """Log a warning if the order of the epoch cannot be repeated, and so not be resumed."""
        ...

    def num_batches(self) -> int:
        """Return the number of batches in an epoch; raise a TypeError, as len() does, if the sampler has no length."""
        ...

    def identity(self) -> dict[str, str | int | bool]:
        """Return what must be the same for a position to mean the same sample."""
        ...


@dataclass(frozen=True)
class SeededOrder:
    """All samples, shuffled by the seed or not, shared between the ranks as shards are."""

    length: int
    """Samples in the dataset."""
    samples: int
    """Samples in an epoch."""
    shuffle: bool
    seed: int
    batch_plan: BatchPlan

    def order(self, epoch: int) -> Ids:
        """Return the samples of an epoch, over all ranks."""
        if not self.shuffle:
            return np.arange(self.samples, dtype=np.int64)
        rng = np.random.Generator(np.random.PCG64([self.seed, epoch]))
        return rng.permutation(self.length)[: self.samples]

    def batch_requests(self, epoch: int, position: int, order: dict[str, Any]) -> Iterator[BatchRequest]:
        """Yield this rank's batches."""
        return self.batch_plan.batch_requests(EpochOrder(self.order(epoch)), epoch, position)

    def next_order(self) -> Order:
        """Return nothing: seed and epoch decide."""
        return {}

    def warn_if_unrepeatable(self) -> None:
        """Do nothing: the order can be repeated."""

    def num_batches(self) -> int:
        """Return the number of batches on every rank."""
        return self.batch_plan.num_batches(self.samples)

    def identity(self) -> dict[str, str | int | bool]:
        """Return seed, shuffle and number of samples; the dataset's length is part of the source's own identity."""
        return {"seed": self.seed, "shuffle": self.shuffle, "samples": self.samples}


class UserOrder(ABC):
    """Base of the orders that a user's sampler or batch sampler decides; it is taken to be this rank's own already."""

    def __init__(self, sampler: Iterable[Any]) -> None:
        self.sampler = sampler
        inner = getattr(sampler, "sampler", None)
        # MMEngine and Lightning call set_epoch on these two objects as well.
        self._with_epoch: list[Any] = [each for each in (sampler, inner) if callable(getattr(each, "set_epoch", None))]
        self._last_epochs = self._epochs()
        self._set_by_user = False
        self._state = SamplerState(sampler)
        self._warned = False

    def batch_requests(self, epoch: int, position: int, order: dict[str, Any]) -> Iterator[BatchRequest]:
        """Yield the sampler's batches; the first one is drawn from the random state that the epoch began with."""
        requests = self._requests(epoch, position)
        with self._state.first_draw(order):
            request = next(requests, None)
        while request is not None:
            yield request
            with self._state.later_draw():
                request = next(requests, None)

    @abstractmethod
    def _requests(self, epoch: int, position: int) -> Iterator[BatchRequest]:
        """Yield the sampler's batches from that position on."""

    def next_order(self) -> Order:
        """Return the sampler's own random state."""
        return self._state.next_order()

    def warn_if_unrepeatable(self) -> None:
        """Warn once of a sampler that draws from the global generators between steps of the training."""
        if self._state.draws_with_the_training and not self._warned:
            self._warned = True
            log.warning(
                "%s draws from the global random generators during the epoch, as the training does, so its order "
                "cannot be repeated: a run that is resumed within an epoch will repeat samples and miss others. Give "
                "the sampler a generator of its own, as an attribute",
                type(self.sampler).__name__,
            )

    def begin(self, epoch: int) -> Iterator[Any]:
        """Return a new iterator. The sampler's epoch is set first, unless the user's code has begun to set it."""
        self._set_by_user = self._set_by_user or self._epochs() != self._last_epochs
        if not self._set_by_user:
            for each in self._with_epoch:
                each.set_epoch(epoch)
        self._last_epochs = self._epochs()
        return iter(self.sampler)

    def _epochs(self) -> list[Any]:
        return [getattr(each, "epoch", None) for each in self._with_epoch]

    def identity(self) -> dict[str, str | int | bool]:
        """Return the sampler's type. Its length may differ from epoch to epoch."""
        return {"sampler": type(self.sampler).__name__}


class SamplerOrder(UserOrder):
    """The indices of a sampler, cut into batches."""

    def __init__(self, sampler: Iterable[Any], batch_plan: BatchPlan) -> None:
        super().__init__(sampler)
        self._batch_plan = batch_plan

    def _requests(self, epoch: int, position: int) -> Iterator[BatchRequest]:
        """Yield batches of the sampler's indices."""
        indices = self.begin(epoch)
        _skip(indices, position)
        size = self._batch_plan.batch_size
        while len(samples := _as_ids(islice(indices, size))) == size:
            position += size
            yield BatchRequest(epoch, samples, position)
        if len(samples) and not self._batch_plan.drop_last:
            yield BatchRequest(epoch, samples, position + len(samples))

    def num_batches(self) -> int:
        """Return the number of batches, as a DataLoader counts them."""
        return self._batch_plan.num_batches(len(self.sampler))  # type: ignore[arg-type]


class BatchSamplerOrder(UserOrder):
    """The batches of a batch sampler, of any size."""

    def _requests(self, epoch: int, position: int) -> Iterator[BatchRequest]:
        """Yield the batch sampler's batches."""
        end = 0
        for batch in self.begin(epoch):
            samples = _as_ids(batch)
            begin, end = end, end + len(samples)
            if begin < position < end:
                raise _not_repeatable(f"no batch of it begins at sample {position} any more")
            if begin >= position:
                yield BatchRequest(epoch, samples, end)
        if end < position:
            raise _not_repeatable(f"it ends after {end} samples, before sample {position}")

    def num_batches(self) -> int:
        """Return the number of batches, as a DataLoader counts them."""
        return len(self.sampler)  # type: ignore[arg-type]


def _skip(indices: Iterator[Any], count: int) -> None:
    skipped = sum(1 for _ in islice(indices, count))
    if skipped < count:
        raise _not_repeatable(f"it ends after {skipped} samples, before sample {count}")


def _not_repeatable(reason: str) -> SettingError:
    return SettingError(
        f"the sampler does not repeat the epoch that is resumed: {reason}",
        stage="plan",
        advice="Use a sampler whose order depends on its seed and epoch alone",
    )


def _as_ids(indices: Any) -> Ids:
    try:
        return np.array([operator.index(index) for index in indices], np.int64)
    except TypeError as error:
        raise SettingError(
            f"the sampler gave something that is not an index: {error}",
            stage="plan",
            advice="A sampler yields ints, a batch_sampler lists of ints",
        ) from error

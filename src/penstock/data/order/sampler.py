"""Who says which samples of a map-style dataset make which batch: we, or a sampler, or a batch sampler."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.data.order.batches import BatchIndices, BatchPlan
from penstock.errors import SettingError

Ids = NDArray[np.int64]


class BatchOrder(Protocol):
    """The batches of any epoch, from any position, and what they depend on."""

    def portions(self, epoch: int, position: int) -> Iterator[BatchIndices]:
        """The epoch's batches from that position on; no sample is touched to get there."""
        ...

    def count(self) -> int:
        """Batches in an epoch; a TypeError, as len gives it, where nobody knows."""
        ...

    def identity(self) -> dict[str, str | int | bool]:
        """What must be the same for a position to mean the same sample."""
        ...


@dataclass(frozen=True)
class SeededOrder:
    """All samples, shuffled or not, shared out over the ranks as shards are."""

    length: int
    """Of the dataset."""
    samples: int
    """How many of them an epoch has."""
    shuffle: bool
    seed: int
    cut: BatchPlan

    def order(self, epoch: int) -> Ids:
        """The samples of an epoch, over all ranks."""
        if not self.shuffle:
            return np.arange(self.samples, dtype=np.int64)
        rng = np.random.Generator(np.random.PCG64([self.seed, epoch]))
        return rng.permutation(self.length)[: self.samples]

    def portions(self, epoch: int, position: int) -> Iterator[BatchIndices]:
        """This rank's batches."""
        return self.cut.portions(self.order(epoch), position)

    def count(self) -> int:
        """Batches on every rank."""
        return self.cut.count(self.samples)

    def identity(self) -> dict[str, str | int | bool]:
        """A permutation is of the seed and the length, and of nothing else."""
        return {"seed": self.seed, "shuffle": self.shuffle, "samples": self.samples}


class UserOrder:
    """What a sampler and a batch sampler have in common: they are the user's, and taken to be this rank's already."""

    def __init__(self, sampler: Iterable[Any]) -> None:
        self.sampler = sampler
        # MMEngine and Lightning know these two places as well.
        inner = getattr(sampler, "sampler", None)
        self._epochal: list[Any] = [each for each in (sampler, inner) if callable(getattr(each, "set_epoch", None))]
        self._seen = self._epochs()
        self._set_by_user = False

    def begin(self, epoch: int) -> Iterator[Any]:
        """A fresh iteration. The sampler is told the epoch, unless somebody else has begun to tell it."""
        self._set_by_user = self._set_by_user or self._epochs() != self._seen
        if not self._set_by_user:
            for each in self._epochal:
                each.set_epoch(epoch)
        self._seen = self._epochs()
        return iter(self.sampler)

    def _epochs(self) -> list[Any]:
        return [getattr(each, "epoch", None) for each in self._epochal]

    def identity(self) -> dict[str, str | int | bool]:
        """All that can be known of an order that is not ours; that it repeats itself is for the user to see to."""
        known: dict[str, str | int | bool] = {"sampler": type(self.sampler).__name__}
        try:
            known["sampler_length"] = len(self.sampler)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):
            pass
        return known


class SamplerOrder(UserOrder):
    """Indices one by one, cut into batches."""

    def __init__(self, sampler: Iterable[Any], cut: BatchPlan) -> None:
        super().__init__(sampler)
        self._cut = cut

    def portions(self, epoch: int, position: int) -> Iterator[BatchIndices]:
        """Batches of the sampler's indices."""
        indices = self.begin(epoch)
        _skip(indices, position)
        size = self._cut.batch_size
        while len(samples := _ids(islice(indices, size))) == size:
            position += size
            yield BatchIndices(samples, position)
        if len(samples) and not self._cut.drop_last:
            yield BatchIndices(samples, position + len(samples))

    def count(self) -> int:
        """As a DataLoader counts."""
        return self._cut.count(len(self.sampler))  # type: ignore[arg-type]


class BatchSamplerOrder(UserOrder):
    """Batches as they come, of whatever size."""

    def portions(self, epoch: int, position: int) -> Iterator[BatchIndices]:
        """The batch sampler's batches."""
        end = 0
        for batch in self.begin(epoch):
            samples = _ids(batch)
            begin, end = end, end + len(samples)
            if begin < position < end:
                raise _not_repeatable(f"its batches do not meet at sample {position} any more")
            if begin >= position:
                yield BatchIndices(samples, end)
        if end < position:
            raise _not_repeatable(f"it ends after {end} samples, before sample {position}")

    def count(self) -> int:
        """As a DataLoader counts."""
        return len(self.sampler)  # type: ignore[arg-type]


def _skip(indices: Iterator[Any], count: int) -> None:
    skipped = sum(1 for _ in islice(indices, count))
    if skipped < count:
        raise _not_repeatable(f"it ends after {skipped} samples, before sample {count}")


def _not_repeatable(how: str) -> SettingError:
    return SettingError(
        f"the sampler does not repeat the epoch that is resumed: {how}",
        stage="plan",
        advice="Use a sampler whose order depends on its seed and epoch alone",
    )


def _ids(indices: Any) -> Ids:
    try:
        return np.array([operator.index(index) for index in indices], np.int64)
    except TypeError as error:
        raise SettingError(
            f"the sampler gave something that is not an index: {error}",
            stage="plan",
            advice="A sampler yields ints, a batch_sampler lists of ints",
        ) from error

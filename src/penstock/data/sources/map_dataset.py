"""Everything the loader needs to know of a map-style dataset: anything with __getitem__ and __len__."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import NO_BLOCK, WorkerProgram
from penstock.core.slab_layout import SlabLayout, SlotSpec
from penstock.data.batch.delivery import locate
from penstock.data.batch.pytree import ROOT, as_leaf, flatten, skeleton, unflatten
from penstock.data.decode.map_samples import CollateProgram, DatasetProgram, DatasetSamples
from penstock.data.decode.rng import restore_global_rngs
from penstock.data.order.batches import BatchIndices
from penstock.data.order.sampler import BatchOrder, SeededOrder
from penstock.data.sources.base import EpochShare, ReadSizes
from penstock.errors import PenstockError, SampleError, SettingError

Ids = NDArray[np.int64]
OnError = Literal["raise", "skip", "replace"]
NOTHING: Ids = np.zeros(0, np.int64)
TRIES = 16
"""Samples looked at for one that is good, where bad ones are not to end the epoch."""


def is_dataset(given: object) -> bool:
    """Whether it is a map-style dataset rather than shards: indexed, of a known length, and not a list of paths."""
    data = sys.modules.get("torch.utils.data")
    if data is not None and isinstance(given, data.IterableDataset):
        raise SettingError(
            "an IterableDataset gives its samples in its own order and cannot be spread over workers sample by sample",
            advice="Give a map-style dataset (__getitem__ and __len__), or the shards themselves",
        )
    if isinstance(given, str | os.PathLike | Mapping) or not (
        hasattr(given, "__getitem__") and hasattr(given, "__len__")
    ):
        return False
    return not (isinstance(given, Sequence) and all(isinstance(each, str | os.PathLike) for each in given))


class DatasetBlockSource:
    """Nothing to fetch: workers ask the dataset themselves."""

    def blocks_of(self, samples: Ids) -> Ids:
        """No blocks."""
        return np.full(len(samples), NO_BLOCK, np.int64)

    def block_bytes(self, block: int) -> int:
        """Never asked."""
        raise NotImplementedError

    def read_block(self, block: int, into: memoryview) -> int:
        """Never asked."""
        raise NotImplementedError

    def task_rows(self, samples: Ids, slots: Ids, bases: Ids) -> Ids:
        """Slot and index."""
        return np.stack((slots, samples), axis=1)

    def rng_ids(self, samples: Ids) -> Ids:
        """Return the indices themselves: each sample seeds its random draws by its index."""
        return samples


@dataclass(frozen=True)
class _SampleStructure:
    """What one sample looks like, and so all of them."""

    skeleton: Any
    leaves: dict[str, str]
    """As `DatasetProgram` has them."""
    slots: dict[str, SlotSpec]
    torch_dtypes: dict[str, str]
    """Of leaves whose numbers numpy does not have."""


class DatasetSource:
    """A dataset, and who picks its samples. A batch is what the dataset's samples make of it, with nothing added."""

    own_code = False

    def __init__(
        self,
        samples: DatasetSamples,
        picks: BatchOrder,
        collate_fn: Callable[[list[Any]], Any] | None,
        on_error: OnError,
    ) -> None:
        self.dataset = samples.dataset
        self.supply = DatasetBlockSource()
        self._samples = samples
        self._picks = picks
        self._collate_fn = collate_fn
        self._on_error = on_error
        self._first: Ids = NOTHING
        """The first batch of the share begun last: what it looks like is what all look like."""
        self._look: _SampleStructure | None = None

    def __len__(self) -> int:
        return self._picks.samples if isinstance(self._picks, SeededOrder) else len(self.dataset)

    def count(self) -> int:
        """Batches of an epoch on this rank."""
        return self._picks.count()

    def per_rank(self) -> int:
        """Samples of an epoch on this rank."""
        return sum(len(portion.samples) for portion in self.portions(0, 0))

    def portions(self, epoch: int, position: int) -> Iterator[BatchIndices]:
        """This rank's batches of the epoch from that position on."""
        return self._picks.portions(epoch, position)

    def share(self, epoch: int, position: int) -> EpochShare:
        """The same, to be delivered now, as far as anybody asks for it."""
        portions = self.portions(epoch, position)
        first = next(portions, None)
        if first is None:
            return EpochShare(iter(()), NOTHING.item)
        self._first = first.samples
        return EpochShare(chain([first], portions), NOTHING.item, whole=self._collate_fn is not None)

    def reading(self) -> ReadSizes:
        """Nothing is read by us."""
        return ReadSizes(NOTHING, 0)

    def layout(self, batch_size: int) -> SlabLayout:
        """Slots for the leaves that have a shape; none where a collate_fn makes the batches."""
        if self._collate_fn is not None:
            return SlabLayout({}, sys.maxsize)  # no slots: a batch of any size fits
        self._look = _look_at(self._first_sample())
        return SlabLayout(self._look.slots, batch_size)

    def work(self, layout: SlabLayout) -> WorkerProgram:
        """What workers run."""
        if self._collate_fn is not None:
            return CollateProgram(self._samples, self._collate_fn, self._on_error)
        assert self._look is not None
        return DatasetProgram(self._samples, layout, self._look.leaves)

    def _first_sample(self) -> Any:
        """The first good one, made here. The dataset itself stays untouched if it is still to be sent to processes:
        many open their files at the first access, and can be pickled only before it."""
        samples = self._samples
        if samples.apart:
            samples = replace(samples, dataset=_copy(samples.dataset))
        failure: PenstockError | None = None
        for index in self._first[: 1 if self._on_error == "raise" else TRIES].tolist():
            with restore_global_rngs():
                sample = next(samples.fetch([index], 0))
            if not isinstance(sample, PenstockError):
                return sample
            failure = failure or locate(sample, index, self)
        raise failure or SettingError("the first batch is empty: nobody can tell what samples look like", stage="plan")

    def where(self, sample: int, suffix: str | None = None) -> tuple[str, str, int | None]:
        """The dataset's type and the index; there are no parts and no offset."""
        return type(self.dataset).__name__, str(sample), None

    def finish(self, values: dict[str, Any], samples: Ids) -> Any:
        """Leaves put together as the samples are, or the batch as collate_fn made it."""
        if self._collate_fn is not None:
            if not len(samples):
                raise SampleError("every sample of a batch is bad: collate_fn has nothing to work on", stage="collate")
            return values[ROOT][0]
        assert self._look is not None
        leaves = {name: values.get(name, []) for name in self._look.leaves}
        for name, dtype in self._look.torch_dtypes.items():
            leaves[name] = _viewed_as(dtype, leaves[name], name)
        return unflatten(self._look.skeleton, leaves)

    def identity(self) -> dict[str, str | int | bool]:
        """What decides the order of an epoch."""
        return {"kind": "map", "length": len(self.dataset), **self._picks.identity()}

    def __repr__(self) -> str:
        return f"{type(self.dataset).__name__} of {len(self.dataset)}"

    def close(self) -> None:
        """The dataset is not ours to close."""


def _copy(dataset: Any) -> Any:
    try:
        return pickle.loads(pickle.dumps(dataset))  # noqa: S301 (our own bytes)
    except Exception as error:
        raise SettingError(
            f"the dataset cannot be sent to worker processes: {type(error).__name__}: {error}",
            stage="plan",
            advice="Open files and connections at the first __getitem__, not before, or use executor='thread'",
        ) from error


def _look_at(sample: Any) -> _SampleStructure:
    leaves: dict[str, str] = {}
    slots: dict[str, SlotSpec] = {}
    torch_dtypes: dict[str, str] = {}
    for name, value in flatten(sample).items():
        leaf = as_leaf(value)
        leaves[name] = "" if leaf is None else str(leaf)
        if leaf is not None:
            slots[name] = SlotSpec(leaf.array.shape, leaf.array.dtype.str)
            if leaf.torch_dtype:
                torch_dtypes[name] = leaf.torch_dtype
    return _SampleStructure(skeleton(sample), leaves, slots, torch_dtypes)


def _viewed_as(dtype: str, value: Any, name: str) -> Any:
    """A tensor of bits as the numbers they are."""
    if isinstance(value, np.ndarray):
        raise SettingError(f"numpy has no {dtype}, which {name} is", advice='Use device="cpu"')
    return value.view(getattr(sys.modules["torch"], dtype))

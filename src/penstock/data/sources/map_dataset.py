"""A source of samples in a map-style dataset: any object with __getitem__ and __len__."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

import numpy as np

from penstock.core.contracts import NO_BLOCK, BatchRequest, EpochRequest, WorkerProgram
from penstock.core.slab_layout import SlabLayout, SlotSpec
from penstock.core.types import Ids
from penstock.data.batch.pytree import as_leaf, collated_batch, flatten, skeleton, unflatten
from penstock.data.decode.collate_program import CollateProgram
from penstock.data.decode.dataset_program import DatasetProgram, DatasetSamples
from penstock.data.decode.rng import restore_global_rngs
from penstock.data.order.batches import one_worker_request
from penstock.data.order.checkpoint import Order
from penstock.data.order.sampler import BatchOrder, SeededOrder
from penstock.data.sources.base import ReadSizes, add_location
from penstock.errors import PenstockError, SettingError

OnError = Literal["raise", "skip", "replace"]
NO_SAMPLES: Ids = np.zeros(0, np.int64)
MAX_TRIES = 16
"""Samples tried until one is good, where bad samples do not end the epoch."""


def is_dataset(data: object) -> bool:
    """Return whether `data` is a map-style dataset rather than shards.

    A dataset can be indexed, has a length, and is not a list of paths.
    """
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and isinstance(data, torch_data.IterableDataset):
        raise SettingError(
            "an IterableDataset gives its samples in its own order and cannot be spread over workers sample by sample",
            advice="Give a map-style dataset (__getitem__ and __len__), or the shards themselves",
        )
    if isinstance(data, str | os.PathLike | Mapping) or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        return False
    return not (isinstance(data, Sequence) and all(isinstance(each, str | os.PathLike) for each in data))


class DatasetBlockSource:
    """A block source without blocks: workers get the samples from the dataset themselves."""

    def blocks_of(self, samples: Ids) -> Ids:
        """Return NO_BLOCK for each sample."""
        return np.full(len(samples), NO_BLOCK, np.int64)

    def block_bytes(self, block: int) -> int:
        """Raise an error: there are no blocks, so this is not called."""
        raise NotImplementedError

    def read_block(self, block: int, into: memoryview) -> int:
        """Raise an error: there are no blocks, so this is not called."""
        raise NotImplementedError

    def task_rows(self, samples: Ids, slots: Ids, block_starts: Ids) -> Ids:
        """Return rows of slot and index."""
        return np.stack((slots, samples), axis=1)


@dataclass(frozen=True)
class _SampleStructure:
    """The structure of one sample, and so of all of them."""

    skeleton: Any
    leaves: dict[str, str]
    """The leaves as `DatasetProgram` has them."""
    slots: dict[str, SlotSpec]
    torch_dtypes: dict[str, str]
    """The torch dtypes that numpy does not have, by leaf."""


class DatasetSource:
    """A map-style dataset and the order of its samples. Batches contain what the samples contain, without keys."""

    runs_user_code = True
    marks_padding = False
    incomplete: Sequence[PenstockError] = ()
    filtered = 0
    whole_samples = 0

    def __init__(
        self,
        samples: DatasetSamples,
        batch_order: BatchOrder,
        collate_fn: Callable[[list[Any]], Any] | None,
        on_error: OnError,
    ) -> None:
        self.dataset = samples.dataset
        self.block_source = DatasetBlockSource()
        self._samples = samples
        self._batch_order = batch_order
        self._collate_fn = collate_fn
        self._on_error = on_error
        self._first: Ids = NO_SAMPLES
        """The first batch of the epoch begun last: all samples are expected to have the structure of its first one."""
        self._structure: _SampleStructure | None = None

    def __len__(self) -> int:
        return self._batch_order.samples if isinstance(self._batch_order, SeededOrder) else len(self.dataset)

    def num_batches(self) -> int:
        """Return the number of batches in an epoch on this rank."""
        return self._batch_order.num_batches()

    def samples_per_rank(self) -> int:
        """Return the number of samples in an epoch on this rank."""
        return sum(len(request.samples) for request in self.batch_requests(0, 0))

    def batch_requests(self, epoch: int, position: int, order: Order | None = None) -> Iterator[BatchRequest]:
        """Yield this rank's batches of the epoch from that position on."""
        return self._batch_order.batch_requests(epoch, position, dict(order or {}))

    def begin_epoch(self, epoch: int, position: int, order: Order | None = None) -> EpochRequest:
        """Return the epoch's batches; all but the first are drawn only as they are iterated over."""
        order = dict(order or {})
        requests = self._batch_order.batch_requests(epoch, position, order)
        first = next(requests, None)
        if first is None:
            return EpochRequest(iter(()), NO_SAMPLES.item, order=order)
        self._first = first.samples
        batches: Iterator[BatchRequest] = chain([first], requests)
        if self._collate_fn is not None:
            batches = map(one_worker_request, batches)
        return EpochRequest(batches, NO_SAMPLES.item, order=order)

    def next_order(self) -> Order:
        """Return the state of the sampler, if it has one."""
        return self._batch_order.next_order()

    def warn_if_unrepeatable(self) -> None:
        """Log a warning if the sampler's order cannot be repeated."""
        self._batch_order.warn_if_unrepeatable()

    def read_sizes(self) -> ReadSizes:
        """Return no blocks: the engine reads nothing."""
        return ReadSizes(NO_SAMPLES, 0)

    def slab_layout(self, batch_size: int) -> SlabLayout:
        """Return slots for the leaves that have a shape; no slots where a collate_fn makes the batches."""
        if self._collate_fn is not None:
            return SlabLayout({}, sys.maxsize)  # without slots a batch of any size fits
        self._structure = _inspect(self._first_sample())
        return SlabLayout(self._structure.slots, batch_size)

    def worker_program(self, layout: SlabLayout) -> WorkerProgram:
        """Return what workers run."""
        if self._collate_fn is not None:
            return CollateProgram(self._samples, self._collate_fn, self._on_error)
        assert self._structure is not None
        return DatasetProgram(self._samples, layout, self._structure.leaves)

    def _first_sample(self) -> Any:
        """Return the first good sample, made in this process.

        If the dataset is still to be sent to worker processes, a copy of it makes the sample: many datasets open
        their files at the first access, and can be pickled only before it.
        """
        samples = self._samples
        if samples.in_processes:
            samples = replace(samples, dataset=_copy(samples.dataset))
        failure: PenstockError | None = None
        for index in self._first[: 1 if self._on_error == "raise" else MAX_TRIES].tolist():
            with restore_global_rngs():
                sample = next(samples.fetch([index], 0))
            if not isinstance(sample, PenstockError):
                return sample
            failure = failure or add_location(sample, index, self)
        raise failure or SettingError(
            "the first batch is empty, so the structure of the samples is not known", stage="plan"
        )

    def location(self, sample: int, suffix: str | None = None) -> tuple[str, str, int | None]:
        """Return the dataset's type and the sample's index; a dataset has no parts and no offsets."""
        return type(self.dataset).__name__, str(sample), None

    def assemble(self, values: dict[str, Any], samples: Ids) -> Any:
        """Return the leaves put together as in the samples, or the batch that collate_fn made."""
        if self._collate_fn is not None:
            return collated_batch(values, samples)
        assert self._structure is not None
        leaves = {name: values.get(name, []) for name in self._structure.leaves}
        for name, dtype in self._structure.torch_dtypes.items():
            leaves[name] = _view_as(dtype, leaves[name], name)
        return unflatten(self._structure.skeleton, leaves)

    def identity(self) -> dict[str, str | int | bool]:
        """Return what decides the order of an epoch."""
        return {"kind": "map", "length": len(self.dataset), **self._batch_order.identity()}

    def __repr__(self) -> str:
        return f"{type(self.dataset).__name__} of {len(self.dataset)}"

    def close(self) -> None:
        """Leave the dataset as it is: it belongs to the user."""


def _copy(dataset: Any) -> Any:
    try:
        return pickle.loads(pickle.dumps(dataset))  # noqa: S301 (this process made the bytes)
    except Exception as error:
        raise SettingError(
            f"the dataset cannot be sent to worker processes: {type(error).__name__}: {error}",
            stage="plan",
            advice="Open files and connections at the first __getitem__, not before, or use executor='thread'",
        ) from error


def _inspect(sample: Any) -> _SampleStructure:
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


def _view_as(dtype: str, value: Any, name: str) -> Any:
    """Return a tensor of integers viewed as the torch dtype whose bits they are."""
    if isinstance(value, np.ndarray):
        raise SettingError(f"{name} is {dtype}, a type that numpy does not have", advice='Use device="cpu"')
    return value.view(getattr(sys.modules["torch"], dtype))

"""What is tuned: a DataLoader as the user made it, or a dataset as torch's defaults would load it."""

from __future__ import annotations

import inspect
import io
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from penstock.data.decode.rng import restore_global_rngs
from penstock.errors import SettingError
from penstock.watcher.loader_views import length_of

HAS_IN_ORDER = "in_order" in inspect.signature(DataLoader).parameters
"""Since torch 2.6."""
ONLY_WITH_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout", "in_order")
"""Arguments that torch refuses, or that mean nothing, where there are no workers."""


def pattern_of(source: Any, batch_size: int | None = None) -> DataLoader[Any]:
    """The loader that others are made like: the given one, or one over the dataset with all of torch's defaults."""
    if isinstance(source, DataLoader):
        if batch_size is not None:
            raise SettingError("the loader has a batch size of its own", advice="Leave batch_size out")
        pattern: DataLoader[Any] = source
    else:
        pattern = DataLoader(_checked(source), batch_size=_checked_size(batch_size))
    if length_of(pattern.dataset) == 0:
        raise SettingError("the dataset is empty: there is nothing to measure")
    return pattern


def is_iterable(loader: DataLoader[Any]) -> bool:
    """Whether the dataset decides itself what comes next."""
    return isinstance(loader.dataset, IterableDataset)


def _checked(dataset: Any) -> Any:
    if isinstance(dataset, IterableDataset):
        return dataset
    if not hasattr(dataset, "__getitem__") or isinstance(dataset, type):
        raise SettingError(
            f"{_name(dataset)} is neither a dataset nor a torch DataLoader",
            advice="Give a dataset with __getitem__ and __len__, an IterableDataset, or a DataLoader",
        )
    if length_of(dataset) is None:
        raise SettingError(
            f"{_name(dataset)} does not say how many samples it has",
            advice="Give it a __len__, or give a DataLoader with a sampler",
        )
    return dataset


def _checked_size(batch_size: int | None) -> int:
    if batch_size is None:
        raise SettingError("a dataset does not say how large batches are", advice="Give batch_size, or a DataLoader")
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise SettingError(f"batch_size={batch_size!r} is not a whole number above 0")
    return batch_size


def _name(thing: Any) -> str:
    return thing.__name__ if isinstance(thing, type) else type(thing).__name__


def like(pattern: DataLoader[Any], changes: Mapping[str, Any], *, order: Any = None) -> DataLoader[Any]:
    """A loader with everything of the pattern's but for these arguments.

    `order` takes the place of its sampler: batches of indices, or single ones where the pattern makes no batches.
    """
    arguments: dict[str, Any] = {
        "dataset": pattern.dataset,
        "num_workers": pattern.num_workers,
        "prefetch_factor": pattern.prefetch_factor,
        "persistent_workers": pattern.persistent_workers,
        "collate_fn": pattern.collate_fn,
        "pin_memory": pattern.pin_memory,
        "timeout": pattern.timeout,
        "worker_init_fn": pattern.worker_init_fn,
        "multiprocessing_context": pattern.multiprocessing_context,
        "generator": pattern.generator,
        **({"in_order": pattern.in_order} if HAS_IN_ORDER else {}),
        **({"pin_memory_device": pattern.pin_memory_device} if pattern.pin_memory_device else {}),
        **_batching(pattern, order),
        **changes,
    }
    if not arguments["num_workers"]:
        for name in ONLY_WITH_WORKERS:
            arguments.pop(name, None)
    return DataLoader(**arguments)


def _batching(pattern: DataLoader[Any], order: Any) -> dict[str, Any]:
    if is_iterable(pattern):
        return {"batch_size": pattern.batch_size, "drop_last": pattern.drop_last}
    if pattern.batch_sampler is None:
        return {"batch_size": None, "sampler": pattern.sampler if order is None else order}
    if order is not None:
        return {"batch_sampler": order}
    if pattern.batch_size is None:
        return {"batch_sampler": pattern.batch_sampler}
    return {"batch_size": pattern.batch_size, "drop_last": pattern.drop_last, "sampler": pattern.sampler}


class IndexOrder:
    """The sampler's batches of indices, drawn by one run after the other, epoch after epoch.

    Every run goes on where the last one stopped: none finds its files in the page cache because another has just
    read them, unless the whole dataset fits there.
    """

    def __init__(self, pattern: DataLoader[Any]) -> None:
        self._sampler: Any = pattern.sampler if pattern.batch_sampler is None else pattern.batch_sampler
        self._batched = pattern.batch_sampler is not None
        self._draw = self._begin()
        self.drawn: list[Any] = []
        """By the run that is on, in order."""
        self._batches = self._samples = 0

    def __iter__(self) -> Iterator[Any]:
        self.drawn = []
        return self

    def __next__(self) -> Any:
        try:
            found = next(self._draw)
        except StopIteration:
            self._draw = self._begin()
            found = next(self._draw, None)
            if found is None:
                raise SettingError("the sampler draws nothing: there is nothing to measure") from None
        self.drawn.append(found)
        self._batches += 1
        self._samples += len(found) if self._batched else 1
        return found

    @property
    def samples_per_batch(self) -> float:
        """Of those drawn so far: the last of an epoch may be smaller."""
        return self._samples / self._batches if self._batches else 1.0

    def _begin(self) -> Iterator[Any]:
        draw: Iterator[Any] = iter(self._sampler)
        if draw is self._sampler:
            raise SettingError(
                "the sampler can be gone through only once: measuring would use it up",
                advice="Give a sampler whose __iter__ begins anew",
            )
        return draw


@contextmanager
def untouched(pattern: DataLoader[Any]) -> Iterator[None]:
    """Whatever is drawn and thrown inside: afterwards the dice lie as before, the loader's own too."""
    owners = (pattern, pattern.sampler, pattern.batch_sampler)
    generators = [getattr(owner, "generator", None) for owner in owners]
    states = [(each, each.get_state()) for each in generators if isinstance(each, torch.Generator)]
    with restore_global_rngs():
        try:
            yield
        finally:
            for generator, state in states:
                generator.set_state(state)


COPY_BYTES_MAX = 256 << 20
"""Of a dataset, what it shares not counted."""
_SHARED = (torch.Tensor, np.ndarray, FunctionType, ModuleType, type)


def copy_dataset(dataset: Any) -> Any | None:
    """A copy that shares arrays, tensors and code with the dataset; None where none can be made."""
    file = _Capped()
    sharing = _Sharing(file, protocol=5)
    try:
        sharing.dump(dataset)
        file.seek(0)
        return _Shared(file, sharing.shared).load()
    except Exception:  # whatever a dataset holds may refuse in its own way
        return None


class _Capped(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + len(data) > COPY_BYTES_MAX:
            raise OverflowError(f"more than {COPY_BYTES_MAX} bytes")
        return super().write(data)


class _Sharing(pickle.Pickler):
    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self.shared: list[Any] = []

    def persistent_id(self, thing: Any) -> int | None:
        """Its place among the shared, for what both copies may use."""
        if isinstance(thing, _SHARED):
            self.shared.append(thing)
            return len(self.shared) - 1
        return None


class _Shared(pickle.Unpickler):
    """Reads what `_Sharing` has just written, in this process."""

    def __init__(self, file: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, place: Any) -> Any:
        """What both copies use."""
        return self._shared[place]

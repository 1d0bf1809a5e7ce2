"""Copies of what is tuned: DataLoaders like the user's with other arguments, and copies of datasets.

Every measurement runs on such a copy, so that the user's own loader, its random generators and its dataset stay as they
were.
"""

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
from penstock.dataloader import DataLoader as PenstockDataLoader
from penstock.errors import SettingError
from penstock.watcher.loader_views import length_of

HAS_IN_ORDER = "in_order" in inspect.signature(DataLoader).parameters
"""Whether torch has the setting in_order, which it has since 2.6."""
WORKER_ARGUMENTS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout", "in_order")
"""Arguments that torch refuses, or that mean nothing, without workers."""


# -- loaders -------------------------------------------------------------------------------------------------------


def template_loader(source: Any, batch_size: int | None = None) -> DataLoader[Any]:
    """Return the loader that others are copied from: the given one, or one over the dataset with torch's defaults."""
    if isinstance(source, DataLoader):
        if batch_size is not None:
            raise SettingError("the loader has a batch size of its own", advice="Leave batch_size out")
        template: DataLoader[Any] = source
    else:
        template = DataLoader(_checked_dataset(source), batch_size=_checked_size(batch_size))
    if length_of(template.dataset) == 0:
        raise SettingError("the dataset is empty: there is nothing to measure")
    return template


def is_iterable(loader: DataLoader[Any]) -> bool:
    """Return whether the dataset itself determines the order of its samples."""
    return isinstance(loader.dataset, IterableDataset)


def _checked_dataset(dataset: Any) -> Any:
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


def _name(source: Any) -> str:
    return source.__name__ if isinstance(source, type) else type(source).__name__


def loader_kind(template: DataLoader[Any]) -> type[DataLoader[Any]]:
    """Return the class of which copies are made: penstock.DataLoader for one of it, else torch's."""
    return PenstockDataLoader if isinstance(template, PenstockDataLoader) else DataLoader


def copy_loader(
    template: DataLoader[Any],
    changes: Mapping[str, Any],
    *,
    order: Any = None,
    kind: type[DataLoader[Any]] | None = None,
) -> DataLoader[Any]:
    """Return a loader with all arguments of the template except for `changes`, of that kind or the template's.

    `order` replaces its sampler: batches of indices, or single indices if the template makes no batches.
    """
    arguments: dict[str, Any] = {
        "dataset": template.dataset,
        "num_workers": template.num_workers,
        "prefetch_factor": template.prefetch_factor,
        "persistent_workers": template.persistent_workers,
        "collate_fn": template.collate_fn,
        "pin_memory": template.pin_memory,
        "timeout": template.timeout,
        "worker_init_fn": template.worker_init_fn,
        "multiprocessing_context": template.multiprocessing_context,
        "generator": template.generator,
        **({"in_order": template.in_order} if HAS_IN_ORDER else {}),
        **({"pin_memory_device": template.pin_memory_device} if template.pin_memory_device else {}),
        **_batching(template, order),
        **changes,
    }
    if not arguments["num_workers"]:
        for name in WORKER_ARGUMENTS:
            arguments.pop(name, None)
    return (kind or loader_kind(template))(**arguments)


def _batching(template: DataLoader[Any], order: Any) -> dict[str, Any]:
    if is_iterable(template):
        return {"batch_size": template.batch_size, "drop_last": template.drop_last}
    if template.batch_sampler is None:
        return {"batch_size": None, "sampler": template.sampler if order is None else order}
    if order is not None:
        return {"batch_sampler": order}
    if template.batch_size is None:
        return {"batch_sampler": template.batch_sampler}
    return {"batch_size": template.batch_size, "drop_last": template.drop_last, "sampler": template.sampler}


class IndexOrder:
    """The sampler's batches of indices, used by one run after the other, epoch after epoch.

    Every run continues where the previous one stopped, so it does not find its files in the page cache because another
    run has just read them, unless the whole dataset fits there.
    """

    def __init__(self, template: DataLoader[Any]) -> None:
        self._sampler: Any = template.sampler if template.batch_sampler is None else template.batch_sampler
        self._batched = template.batch_sampler is not None
        self._indices = self._new_epoch()
        self.drawn: list[Any] = []
        """Batches of indices drawn by the current run, in order."""
        self._batches = self._samples = 0

    def __iter__(self) -> Iterator[Any]:
        self.drawn = []
        return self

    def __next__(self) -> Any:
        try:
            found = next(self._indices)
        except StopIteration:
            self._indices = self._new_epoch()
            found = next(self._indices, None)
            if found is None:
                raise SettingError("the sampler is empty: there is nothing to measure") from None
        self.drawn.append(found)
        self._batches += 1
        self._samples += len(found) if self._batched else 1
        return found

    @property
    def samples_per_batch(self) -> float:
        """Mean size of the batches drawn so far: the last one of an epoch may be smaller."""
        return self._samples / self._batches if self._batches else 1.0

    def _new_epoch(self) -> Iterator[Any]:
        indices: Iterator[Any] = iter(self._sampler)
        if indices is self._sampler:
            raise SettingError(
                "the sampler can be iterated over only once: measuring would use it up",
                advice="Give a sampler whose __iter__ begins anew",
            )
        return indices


@contextmanager
def preserve_rngs(template: DataLoader[Any]) -> Iterator[None]:
    """Restore the global random generators and those of the loader after the block."""
    owners = (template, template.sampler, template.batch_sampler)
    generators = [getattr(owner, "generator", None) for owner in owners]
    states = [(each, each.get_state()) for each in generators if isinstance(each, torch.Generator)]
    with restore_global_rngs():
        try:
            yield
        finally:
            for generator, state in states:
                generator.set_state(state)


# -- datasets ------------------------------------------------------------------------------------------------------

COPY_BYTES_MAX = 256 << 20
"""Largest copy of a dataset; parts that the copy shares with it do not count."""
_SHARED_TYPES = (torch.Tensor, np.ndarray, FunctionType, ModuleType, type)


def copy_dataset(dataset: Any) -> Any | None:
    """Return a copy that shares arrays, tensors and code with the dataset; None if it cannot be copied.

    Samples are loaded in this process from such a copy only: many datasets open files at the first access, and worker
    processes that inherit an open file share its position.
    """
    file = _LimitedBuffer()
    pickler = _SharingPickler(file, protocol=5)
    try:
        pickler.dump(dataset)
        file.seek(0)
        return _SharingUnpickler(file, pickler.shared).load()
    except Exception:  # objects of a dataset may refuse to be pickled with any exception
        return None


class _LimitedBuffer(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + len(data) > COPY_BYTES_MAX:  # glossary: allow
            raise OverflowError(f"more than {COPY_BYTES_MAX} bytes")
        return super().write(data)


class _SharingPickler(pickle.Pickler):
    """Keeps references to arrays, tensors and code instead of pickling them."""

    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self.shared: list[Any] = []

    def persistent_id(self, value: Any) -> int | None:
        """Return the index of a shared object; None for one that is pickled."""
        if isinstance(value, _SHARED_TYPES):
            self.shared.append(value)
            return len(self.shared) - 1
        return None


class _SharingUnpickler(pickle.Unpickler):
    """Reads what a `_SharingPickler` of this process has written."""

    def __init__(self, file: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, index: Any) -> Any:
        """Return the shared object with this index."""
        return self._shared[index]

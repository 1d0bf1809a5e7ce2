"""The worker programs for map-style datasets: they get samples from the dataset and write them into the slab."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.contracts import BAD_SAMPLE, Extras, Task, TaskRunner
from penstock.core.slab_layout import SlabLayout
from penstock.core.types import Arrays
from penstock.data.batch.pytree import as_leaf, flatten
from penstock.data.decode.collate_program import attempt
from penstock.data.decode.rng import sample_rng, seed_global_rngs
from penstock.errors import PenstockError, SampleError

SampleTransform = Callable[[Any, np.random.Generator], Any]


@dataclass(frozen=True)
class DatasetSamples:
    """A dataset and the transform of its samples. Picklable if both are."""

    dataset: Any
    seed: int
    transform: SampleTransform | None
    in_processes: bool
    """Whether worker processes get the samples. Only there may the global random generators be seeded."""

    def fetch(self, indices: Sequence[int], epoch: int) -> Iterator[Any]:
        """Return an iterator over the samples, with a SampleError in the place of a sample that failed."""
        several = self._fetch_together(indices, epoch)
        if several is None:
            return (attempt(self.one, index, epoch) for index in indices)
        return (
            attempt(self._transformed, sample, index, epoch) for sample, index in zip(several, indices, strict=True)
        )

    def start(self, arena: memoryview) -> Callable[[Task], list[Any]]:
        """Return a function that makes the samples of a task, for `CollateProgram`."""
        return lambda task: list(self.fetch(task.rows[:, 1].tolist(), task.epoch))

    def repeated(self, sample: Any) -> Any:
        """Return a sample as it is put in the place of a bad one: unchanged."""
        return sample

    def one(self, index: int, epoch: int) -> Any:
        """Return one sample; the user's code may raise anything."""
        self._seed(index, epoch)
        return self._transformed(self.dataset[index], index, epoch)

    def _fetch_together(self, indices: Sequence[int], epoch: int) -> list[Any] | None:
        """Return all samples by `__getitems__`.

        Return None if the dataset does not have that method or it fails: fetching the samples one by one shows which
        of them is bad.
        """
        if len(indices) == 1 or not has_getitems(self.dataset):
            return None
        self._seed(indices[0], epoch)
        try:
            samples = list(self.dataset.__getitems__(list(indices)))
        except Exception:
            return None
        return samples if len(samples) == len(indices) else None

    def _seed(self, index: int, epoch: int) -> None:
        if self.in_processes:
            seed_global_rngs(self.seed, epoch, index)

    def _transformed(self, sample: Any, index: int, epoch: int) -> Any:
        return sample if self.transform is None else self.transform(sample, sample_rng(self.seed, epoch, index))


def has_getitems(dataset: Any) -> bool:
    """Return whether the dataset implements `__getitems__`; torch's Subset only calls that of the dataset inside it."""
    torch_data = sys.modules.get("torch.utils.data")
    while torch_data is not None and isinstance(dataset, torch_data.Subset):
        dataset = dataset.dataset
    return callable(getattr(dataset, "__getitems__", None))


@dataclass(frozen=True)
class DatasetProgram:
    """The worker program for datasets: writes samples of one structure into slabs."""

    samples: DatasetSamples
    layout: SlabLayout
    leaves: Mapping[str, str]
    """Dtype and shape of every leaf of a sample, as text, by name; empty for a leaf that does not go into the slab."""

    def start(self, arena: memoryview, slabs: memoryview) -> TaskRunner:
        """Return a function that writes a task's samples into their slab."""

        def run(task: Task) -> Extras:
            arrays = self.layout.arrays(slabs, task.slab_start)
            slots, indices = task.rows.T.tolist()
            extras: Extras = []
            for slot, sample in zip(slots, self.samples.fetch(indices, task.epoch), strict=True):
                stored = sample if isinstance(sample, PenstockError) else attempt(self._store, slot, sample, arrays)
                extras += [(slot, BAD_SAMPLE, stored)] if isinstance(stored, PenstockError) else stored
            return extras

        return run

    def _store(self, slot: int, sample: Any, arrays: Arrays) -> Extras:
        """Write the leaves that fit into the slot, and return the others."""
        leaves = flatten(sample)
        if leaves.keys() != self.leaves.keys():
            raise SampleError(_different_leaves(self.leaves, leaves), stage="batch", advice=_ADVICE)
        extras: Extras = []
        for name, value in leaves.items():
            if name not in arrays:
                extras.append((slot, name, value))
                continue
            leaf = as_leaf(value)
            if leaf is None or str(leaf) != self.leaves[name]:
                found = type(value).__name__ if leaf is None else leaf
                reason = f"{name} is {found} where the first sample had {self.leaves[name]}"
                raise SampleError(reason, stage="batch", advice=_ADVICE)
            arrays[name][slot, ...] = leaf.array
        return extras


_ADVICE = "Give every sample one shape, or a collate_fn that makes a batch of them"


def _different_leaves(expected: Mapping[str, str], found: Mapping[str, Any]) -> str:
    missing, new = (sorted(a.keys() - b.keys()) for a, b in ((expected, found), (found, expected)))
    return f"{missing[0]} is missing, which the first sample had" if missing else f"the first sample had no {new[0]}"

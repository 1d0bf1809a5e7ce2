"""What workers do with the rows of a map-style dataset: ask it for samples, and put them where the batch will be."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import BAD_SAMPLE, Task, TaskRunner
from penstock.core.slab_layout import SlabLayout
from penstock.data.batch.bad_samples import replacement_slots
from penstock.data.batch.pytree import ROOT, as_leaf, flatten
from penstock.data.decode.rng import sample_rng, seed_global_rngs
from penstock.errors import PenstockError, SampleError

SampleTransform = Callable[[Any, np.random.Generator], Any]
Arrays = Mapping[str, NDArray[Any]]
Extras = list[tuple[int, str, Any]]


@dataclass(frozen=True)
class DatasetSamples:
    """Picklable: a dataset, and what is done to each of its samples."""

    dataset: Any
    seed: int
    transform: SampleTransform | None
    apart: bool
    """Whether it runs in processes of its own: there, and only there, the shared dice are ours to throw."""

    def fetch(self, indices: Sequence[int], epoch: int) -> Iterator[Any]:
        """Each sample, or in its place the SampleError that says why not."""
        several = self._several(indices, epoch)
        if several is None:
            return (_attempt(self.one, index, epoch) for index in indices)
        return (
            _attempt(self._transformed, sample, index, epoch) for sample, index in zip(several, indices, strict=True)
        )

    def one(self, index: int, epoch: int) -> Any:
        """One sample, or whatever the user's code raises."""
        self._throw(index, epoch)
        return self._transformed(self.dataset[index], index, epoch)

    def _several(self, indices: Sequence[int], epoch: int) -> list[Any] | None:
        """All at once where the dataset can; None where it cannot, or fails: one by one shows whose fault it is."""
        if len(indices) == 1 or not gives_several(self.dataset):
            return None
        self._throw(indices[0], epoch)
        try:
            samples = list(self.dataset.__getitems__(list(indices)))
        except Exception:
            return None
        return samples if len(samples) == len(indices) else None

    def _throw(self, index: int, epoch: int) -> None:
        if self.apart:
            seed_global_rngs(self.seed, epoch, index)

    def _transformed(self, sample: Any, index: int, epoch: int) -> Any:
        return sample if self.transform is None else self.transform(sample, sample_rng(self.seed, epoch, index))


def gives_several(dataset: Any) -> bool:
    """Whether the dataset has a way of its own to give several samples; torch's Subset only passes the question on."""
    data = sys.modules.get("torch.utils.data")
    while data is not None and isinstance(dataset, data.Subset):
        dataset = dataset.dataset
    return callable(getattr(dataset, "__getitems__", None))


@dataclass(frozen=True)
class DatasetProgram:
    """Samples of one structure, into slabs."""

    samples: DatasetSamples
    layout: SlabLayout
    leaves: Mapping[str, str]
    """Every leaf of a sample; behind the name what it looks like in a slab, or nothing if it does not go there."""

    def start(self, arena: memoryview, slabs: memoryview) -> TaskRunner:
        """A function from tasks to what does not fit into a slab."""

        def run(task: Task) -> Extras:
            arrays = self.layout.arrays(slabs, task.slab_start)
            slots, indices = task.rows.T.tolist()
            extras: Extras = []
            for slot, sample in zip(slots, self.samples.fetch(indices, task.epoch), strict=True):
                placed = sample if isinstance(sample, PenstockError) else _attempt(self._place, slot, sample, arrays)
                extras += [(slot, BAD_SAMPLE, placed)] if isinstance(placed, PenstockError) else placed
            return extras

        return run

    def _place(self, slot: int, sample: Any, arrays: Arrays) -> Extras:
        """Write what fits into the slot; what does not is returned."""
        leaves = flatten(sample)
        if leaves.keys() != self.leaves.keys():
            raise SampleError(_other_leaves(self.leaves, leaves), stage="batch", advice=_ADVICE)
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


@dataclass(frozen=True)
class CollateProgram:
    """Whole batches, made by the user's collate_fn."""

    samples: DatasetSamples
    collate_fn: Callable[[list[Any]], Any]
    on_error: Literal["raise", "skip", "replace"]

    def start(self, arena: memoryview, slabs: memoryview) -> TaskRunner:
        """A function from tasks, each a whole batch, to the batch: under the first good slot, where it stays."""

        def run(task: Task) -> Extras:
            slots, indices = task.rows.T.tolist()
            samples = list(self.samples.fetch(indices, task.epoch))
            bad: Extras = [
                (slot, BAD_SAMPLE, s) for slot, s in zip(slots, samples, strict=True) if isinstance(s, PenstockError)
            ]
            good = [place for place, sample in enumerate(samples) if not isinstance(sample, PenstockError)]
            if not good or (bad and self.on_error == "raise"):
                return bad
            used = good if self.on_error == "skip" else replacement_slots(good, len(samples))
            batch = _attempt(self.collate_fn, [samples[place] for place in used], stage="collate")
            if isinstance(batch, PenstockError):
                return bad + [
                    (slots[place], BAD_SAMPLE, copy(batch)) for place in good
                ]  # each is to be told where it was
            return [*bad, (slots[good[0]], ROOT, batch)]

        return run


_ADVICE = "Give every sample one shape, or a collate_fn that makes a batch of them"


def _other_leaves(expected: Mapping[str, str], found: Mapping[str, Any]) -> str:
    missing, new = (sorted(a.keys() - b.keys()) for a, b in ((expected, found), (found, expected)))
    return f"{missing[0]} is missing, which the first sample had" if missing else f"the first sample had no {new[0]}"


def _attempt(call: Callable[..., Any], *arguments: Any, stage: str = "dataset") -> Any:
    """What the user's code gives, or an error of ours with its traceback as a note: theirs may not be picklable."""
    try:
        return call(*arguments)
    except PenstockError as error:
        return error
    except (Exception, SystemExit) as error:
        ours = SampleError(f"{type(error).__name__}: {error}", stage=stage)
        ours.add_note(traceback.format_exc())
        return ours

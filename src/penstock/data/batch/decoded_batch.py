"""A complete batch as it lies in its slab, and how slots of it are left out or replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import BAD_SAMPLE, CompleteBatch
from penstock.core.slab_layout import EncodedSizes
from penstock.core.types import Arrays, Bools, Ids

PADDING = "__padding__"
"""Name in a batch of the flags of samples that only fill it, because the epoch delivers them elsewhere too."""
Views = dict[str | tuple[str, int], NDArray[Any]]
"""All of a batch that lies in its slab: arrays by name, arrays without a fixed shape by name and slot."""


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """A complete batch, ready to be moved to the device."""

    arrays: Arrays
    """Arrays by name: views of the slab, or copies."""
    slab: int
    """Number of the slab that holds the batch, or held it before it was copied."""
    samples: Ids
    epoch: int
    rng_ids: Ids
    """Numbers that seed the samples' random draws, with the seed and the epoch."""
    lists: Mapping[str, list[Any]] = field(default_factory=dict)
    """Values without a fixed shape by name, in the order of the samples."""
    encoded_sizes: Mapping[str, EncodedSizes] = field(default_factory=dict)
    """The encoded sizes of arrays of which some slots hold a JPEG, by name."""
    on_copied: Callable[[], None] | None = None
    """Called once when the slab may be used again. None where the arrays are copies, or keep the slab themselves."""
    padding: Bools | None = None
    """Which samples only fill the batch, because the epoch delivers them elsewhere too; None if there are none."""

    def take(self, slots: list[int]) -> DecodedBatch:
        """Return a batch of these slots, in this order, in memory of its own. A slot's repetitions are padding."""
        return DecodedBatch(
            {name: array[slots] for name, array in self.arrays.items()},
            self.slab,
            self.samples[slots],
            self.epoch,
            self.rng_ids[slots],
            take_slots(self.lists, slots),
            only_encoded({name: sizes[slots] for name, sizes in self.encoded_sizes.items()}),
            padding=take_padding(self.padding, slots),
        )


def decoded_batch(
    complete: CompleteBatch,
    views: Views,
    encoded_sizes: Mapping[str, EncodedSizes],
    on_copied: Callable[[], None] | None = None,
) -> DecodedBatch:
    """Put together what workers wrote into the slab and what they sent over their pipes."""
    request = complete.request
    samples = request.samples
    arrays = {name: view for name, view in views.items() if isinstance(name, str)}
    lists: dict[str, list[Any]] = {}
    for slot, name, value in complete.extras:
        if name != BAD_SAMPLE:
            lists.setdefault(name, [None] * len(samples))[slot] = views.get((name, slot), value)
    rng_ids = samples if request.rng_ids is None else request.rng_ids
    padding = np.arange(len(samples)) >= len(samples) - request.padding if request.padding else None
    return DecodedBatch(
        arrays, complete.slab, samples, request.epoch, rng_ids, lists, encoded_sizes, on_copied, padding
    )


def only_encoded(encoded_sizes: Mapping[str, EncodedSizes]) -> dict[str, EncodedSizes]:
    """Return the encoded sizes without those of arrays whose slots all hold pixels."""
    return {name: sizes for name, sizes in encoded_sizes.items() if sizes[:, 0].any()}


def take_slots(lists: Mapping[str, list[Any]], slots: Sequence[int]) -> dict[str, list[Any]]:
    """Return these slots of every list. Arrays are copied: they may lie in the slab, which will be used again."""
    return {name: [_copied(values[slot]) for slot in slots] for name, values in lists.items()}


def take_padding(padding: Bools | None, slots: Sequence[int]) -> Bools | None:
    """Return which of these slots are padding: those that were, and every repetition of a slot."""
    taken = np.array(slots, np.int64)
    repeated = np.ones(len(taken), bool)
    repeated[np.unique(taken, return_index=True)[1]] = False
    found: Bools = repeated if padding is None else repeated | padding[taken]
    return found if found.any() else None


def replacement_slots(good: Sequence[int], count: int) -> list[int]:
    """Return, for each of `count` slots, itself if it is good, else the next good one; after the last, the first."""
    return [next((slot for slot in good if slot >= wanted), good[0]) for wanted in range(count)]


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value

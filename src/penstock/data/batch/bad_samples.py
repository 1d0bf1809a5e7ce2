"""What is in a complete batch, slot by slot, and how slots are left out or take another's place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import BAD_SAMPLE
from penstock.core.slab_layout import EncodedSizes
from penstock.data.device.device_stage import Arrays, Ids

Views = dict[str | tuple[str, int], NDArray[Any]]
"""Everything of a batch that lies in its slab: arrays by name, values without a fixed shape by name and slot."""


@dataclass(frozen=True, slots=True)
class BatchContent:
    """By the fields' names."""

    arrays: Arrays
    lists: dict[str, list[Any]]
    samples: Ids
    encoded: Mapping[str, EncodedSizes]
    """Of arrays of which some slots hold a JPEG: which, see `Encoded`."""

    def take(self, slots: list[int]) -> BatchContent:
        """These slots, in this order, in memory of their own."""
        arrays = {name: array[slots] for name, array in self.arrays.items()}
        encoded = some_encoded({name: notes[slots] for name, notes in self.encoded.items()})
        return BatchContent(arrays, taken(self.lists, slots), self.samples[slots], encoded)


def batch_content(
    samples: Ids, extras: Sequence[tuple[int, str, Any]], views: Views, encoded: Mapping[str, EncodedSizes]
) -> BatchContent:
    """From what workers put into the slab, and what they said beside it."""
    arrays = {name: view for name, view in views.items() if isinstance(name, str)}
    lists: dict[str, list[Any]] = {}
    for slot, name, value in extras:
        if name != BAD_SAMPLE:
            lists.setdefault(name, [None] * len(samples))[slot] = views.get((name, slot), value)
    return BatchContent(arrays, lists, samples, encoded)


def some_encoded(notes: Mapping[str, EncodedSizes]) -> dict[str, EncodedSizes]:
    """Without those by which all slots hold pixels."""
    return {name: of_array for name, of_array in notes.items() if of_array[:, 0].any()}


def taken(lists: Mapping[str, list[Any]], slots: Sequence[int]) -> dict[str, list[Any]]:
    """These slots of every list; an array may lie in the slab, which will be used again."""
    return {name: [_own(values[slot]) for slot in slots] for name, values in lists.items()}


def replacement_slots(good: Sequence[int], count: int) -> list[int]:
    """For each of `count` slots a good one: itself, or the next that is; after the last the first."""
    return [next((slot for slot in good if slot >= wanted), good[0]) for wanted in range(count)]


def _own(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value

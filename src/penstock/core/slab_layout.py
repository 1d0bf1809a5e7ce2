"""How a batch lies in its slab: shared memory in which it is put together slot by slot, where it will be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

PAGE = 4096
MAX_RAGGED_BYTES = 256 << 20
"""Of a slab, for values without a fixed shape."""
ENCODED_SIZE_FIELDS = 3
"""Numbers in a note."""

RaggedBuffer = NDArray[np.uint8]
"""Bytes of a slab that one value without a fixed shape may have."""
EncodedSizes = NDArray[np.int32]
"""(slots, NOTED): what is to be known of each slot of an array."""


@dataclass(frozen=True, slots=True)
class SlotSpec:
    """What one sample puts into one array of the batch."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Bytes per sample."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


class RaggedView(NamedTuple):
    """Goes over the pipe instead of an array that is in its room already, and says how to see it there."""

    dtype: str
    shape: tuple[int, ...]

    def array_in(self, room: RaggedBuffer) -> NDArray[Any]:
        """The array: a view, nothing is copied, and no byte is seen that it does not own."""
        return np.ndarray(self.shape, self.dtype, room)


def store_ragged(value: Any, room: RaggedBuffer) -> RaggedView | None:
    """Copy the value into its room; None if it is no plain array, or too large."""
    if type(value) is not np.ndarray or value.nbytes > len(room):
        return None
    if value.dtype.hasobject or np.dtype(value.dtype.str) != value.dtype:  # a record's fields are not in the string
        return None
    placed = RaggedView(value.dtype.str, value.shape)
    np.copyto(placed.array_in(room), value)
    return placed


@dataclass(frozen=True)
class SlabLayout:
    """Where each array of a batch lies in its slab. Every array starts on a page, as pinning and O_DIRECT want it.

    Values without a fixed shape have room behind the arrays, as much as `room_sizes` says for each of them in every
    slot, but together no more than `MOST_ROOM_BYTES`: where that is not enough, the last slots have none. Notes lie
    behind all that: a few numbers for every sample would be long on their way through a pipe.
    """

    slots: Mapping[str, SlotSpec]
    batch_size: int
    ragged_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes per sample. What has no room, or needs more, goes over the worker's pipe."""
    maybe_encoded: tuple[str, ...] = ()
    """Arrays whose slots have a note each."""

    @cached_property
    def offsets(self) -> dict[str, int]:
        """First byte of each array, and of the room for each value without a fixed shape."""
        places, at = {}, 0
        for name, size in self._sizes().items():
            places[name] = at
            at += size
        return places

    @cached_property
    def size(self) -> int:
        """Bytes of a whole slab."""
        return max(PAGE, self._notes_start + len(self.maybe_encoded) * self._notes_bytes)

    @cached_property
    def filled_bytes(self) -> int:
        """Of a slab, from its start: what a whole batch fills for certain."""
        return sum(round_up_to_page(slot.size * self.batch_size) for slot in self.slots.values())

    @cached_property
    def ragged_slots(self) -> int:
        """The first so many."""
        per_sample = sum(map(round_up_to_page, self.ragged_bytes.values()))
        return min(self.batch_size, MAX_RAGGED_BYTES // per_sample) if per_sample else 0

    def arrays(self, memory: memoryview, start: int = 0) -> dict[str, NDArray[Any]]:
        """The batch's arrays over the slab that begins at `start`: views, nothing is copied."""
        offsets = self.offsets
        return {
            name: np.ndarray((self.batch_size, *slot.shape), slot.dtype, memory, start + offsets[name])
            for name, slot in self.slots.items()
        }

    def ragged_buffers(self, memory: memoryview, start: int = 0) -> dict[str, RaggedBuffer]:
        """The same for values without a fixed shape: a row of bytes for every slot that has room."""
        count, offsets = self.ragged_slots, self.offsets
        return {
            name: np.ndarray((count, round_up_to_page(size)), np.uint8, memory, start + offsets[name])
            for name, size in self.ragged_bytes.items()
        }

    def encoded_sizes(self, memory: memoryview, start: int = 0) -> dict[str, EncodedSizes]:
        """Of each array that has some: views, as the arrays are."""
        places = (start + self._notes_start + number * self._notes_bytes for number in range(len(self.maybe_encoded)))
        shape = (self.batch_size, ENCODED_SIZE_FIELDS)
        return {
            name: np.ndarray(shape, np.int32, memory, place)
            for name, place in zip(self.maybe_encoded, places, strict=True)
        }

    @cached_property
    def _notes_start(self) -> int:
        return sum(self._sizes().values())

    @property
    def _notes_bytes(self) -> int:
        return round_up_to_page(self.batch_size * ENCODED_SIZE_FIELDS * np.dtype(np.int32).itemsize)

    def _sizes(self) -> dict[str, int]:
        """Bytes of each array and of each kind of room."""
        arrays = {name: round_up_to_page(slot.size * self.batch_size) for name, slot in self.slots.items()}
        count = self.ragged_slots
        return arrays | {name: round_up_to_page(size) * count for name, size in self.ragged_bytes.items()}


def round_up_to_page(size: int) -> int:
    """That many bytes, rounded up: pages that nobody touches cost nothing."""
    return -(-size // PAGE) * PAGE

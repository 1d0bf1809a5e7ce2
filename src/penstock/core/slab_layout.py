"""How a batch lies in its slab: the shared memory in which workers assemble it slot by slot, ready for use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.types import Arrays

PAGE = 4096
MAX_RAGGED_BYTES = 256 << 20
"""Bytes of a slab, at most, for arrays without a fixed shape."""
ENCODED_SIZE_FIELDS = 8
"""Numbers per slot in `EncodedSizes`: those of `EncodedImage` in data/fields/base.py."""

RaggedBuffer = NDArray[np.uint8]
"""The bytes of a slab that one array without a fixed shape may use."""
EncodedSizes = NDArray[np.int32]
"""(slots, ENCODED_SIZE_FIELDS): an `EncodedImage` for each slot that holds a JPEG; zeros where a slot holds pixels."""


@dataclass(frozen=True, slots=True)
class SlotSpec:
    """Shape and dtype of what one sample puts into one array of the batch."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Bytes per sample."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


class RaggedView(NamedTuple):
    """Dtype and shape of an array that lies in a ragged buffer; sent over the worker's pipe instead of the array."""

    dtype: str
    shape: tuple[int, ...]

    def array_in(self, buffer: RaggedBuffer) -> NDArray[Any]:
        """Return a view of the array in its buffer. Nothing is copied, and no byte outside the buffer can be seen."""
        return np.ndarray(self.shape, self.dtype, buffer)


def store_ragged(value: Any, buffer: RaggedBuffer) -> RaggedView | None:
    """Copy an array into its buffer; return None if the value is not a plain array, or too large."""
    if type(value) is not np.ndarray or value.nbytes > len(buffer):
        return None
    if value.dtype.hasobject or np.dtype(value.dtype.str) != value.dtype:  # the string lacks the fields of a record
        return None
    view = RaggedView(value.dtype.str, value.shape)
    np.copyto(view.array_in(buffer), value)
    return view


@dataclass(frozen=True)
class SlabLayout:
    """The place of each array of a batch in its slab. Every array starts on a page, as pinning and O_DIRECT require.

    Behind the arrays lie the buffers for arrays without a fixed shape: `ragged_bytes` for each of them in every slot,
    but MAX_RAGGED_BYTES at most. Where that is not enough, the last slots have no buffers. Behind the buffers lie the
    encoded sizes: some numbers per sample, which would be slow to send over a pipe.
    """

    slots: Mapping[str, SlotSpec]
    batch_size: int
    ragged_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes per sample, by name. An array that has no buffer, or is larger, is sent over the worker's pipe."""
    maybe_encoded: tuple[str, ...] = ()
    """Arrays whose slots may hold a JPEG instead of pixels, and have encoded sizes."""

    @cached_property
    def offsets(self) -> dict[str, int]:
        """First byte of each array, and of the buffers for each array without a fixed shape."""
        offsets, offset = {}, 0
        for name, size in self._sizes().items():
            offsets[name] = offset
            offset += size
        return offsets

    @cached_property
    def size(self) -> int:
        """Bytes of a slab."""
        return max(PAGE, self._encoded_sizes_start + len(self.maybe_encoded) * self._encoded_sizes_bytes)

    @cached_property
    def filled_bytes(self) -> int:
        """Bytes from the start of a slab that a full batch is certain to fill."""
        return sum(round_up_to_page(slot.size * self.batch_size) for slot in self.slots.values())

    @cached_property
    def ragged_slots(self) -> int:
        """The number of slots, from the first on, that have ragged buffers."""
        per_sample = sum(map(round_up_to_page, self.ragged_bytes.values()))
        return min(self.batch_size, MAX_RAGGED_BYTES // per_sample) if per_sample else 0

    def arrays(self, memory: memoryview, start: int = 0) -> Arrays:
        """Return views of the batch's arrays in the slab that begins at `start`."""
        offsets = self.offsets
        return {
            name: np.ndarray((self.batch_size, *slot.shape), slot.dtype, memory, start + offsets[name])
            for name, slot in self.slots.items()
        }

    def ragged_buffers(self, memory: memoryview, start: int = 0) -> dict[str, RaggedBuffer]:
        """Return views of the ragged buffers: for each name, a row of bytes for every slot that has a buffer."""
        count, offsets = self.ragged_slots, self.offsets
        return {
            name: np.ndarray((count, round_up_to_page(size)), np.uint8, memory, start + offsets[name])
            for name, size in self.ragged_bytes.items()
        }

    def encoded_sizes(self, memory: memoryview, start: int = 0) -> dict[str, EncodedSizes]:
        """Return views of the encoded sizes of each array that has some."""
        first, size = start + self._encoded_sizes_start, self._encoded_sizes_bytes
        shape = (self.batch_size, ENCODED_SIZE_FIELDS)
        return {
            name: np.ndarray(shape, np.int32, memory, first + number * size)
            for number, name in enumerate(self.maybe_encoded)
        }

    @cached_property
    def _encoded_sizes_start(self) -> int:
        return sum(self._sizes().values())

    @cached_property
    def _encoded_sizes_bytes(self) -> int:
        return round_up_to_page(self.batch_size * ENCODED_SIZE_FIELDS * np.dtype(np.int32).itemsize)

    def _sizes(self) -> dict[str, int]:
        """Return the bytes of each array, and of the ragged buffers of each name."""
        arrays = {name: round_up_to_page(slot.size * self.batch_size) for name, slot in self.slots.items()}
        count = self.ragged_slots
        return arrays | {name: round_up_to_page(size) * count for name, size in self.ragged_bytes.items()}


def round_up_to_page(size: int) -> int:
    """Round a number of bytes up to whole pages. Pages that are never written take no memory."""
    return -(-size // PAGE) * PAGE

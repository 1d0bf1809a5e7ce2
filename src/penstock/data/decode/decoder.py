"""The worker program for shards: finds parts in the arena, decodes them, and writes them into the slab."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import BAD_SAMPLE, Extras, Task, TaskRunner
from penstock.core.slab_layout import EncodedSizes, RaggedBuffer, SlabLayout, store_ragged
from penstock.data.decode.rng import sample_rng
from penstock.data.fields.array import Array
from penstock.data.fields.base import NOT_ENCODED, Field
from penstock.data.read.block_layout import FIRST_PART, PART_COLUMNS
from penstock.data.read.checksum import check_crc
from penstock.data.read.page_cache_read import PageCacheFiles
from penstock.errors import PenstockError, SampleError

Transform = Callable[[dict[str, Any], np.random.Generator], dict[str, Any]]


class _Column(NamedTuple):
    """A field with its properties, which some fields compute anew at each access."""

    start: int
    """Column of a row at which its part begins."""
    name: str
    field: Field
    suffixes: tuple[str, ...]
    fixed_shape: bool


class _SlabViews(NamedTuple):
    """The places in a slab to which the samples of a batch are written."""

    arrays: Mapping[str, NDArray[Any]]
    ragged: Mapping[str, RaggedBuffer]
    encoded_sizes: Mapping[str, EncodedSizes]

    def store(self, slot: int, name: str, value: Any, extras: Extras) -> None:
        """Store a value without a fixed shape: in its buffer, or among the extras if that is missing or too small."""
        buffers = self.ragged.get(name)
        view = store_ragged(value, buffers[slot]) if buffers is not None and slot < len(buffers) else None
        extras.append((slot, name, value if view is None else view))


class _PartBytes(NamedTuple):
    """Finds the bytes of a part: in the arena, or in a file that the worker reads itself."""

    arena: memoryview
    files: PageCacheFiles | None

    def find(self, row: list[int], start: int) -> memoryview:
        """Return the bytes, checked against their CRC32; they are valid until the next part is found."""
        offset, length, _, crc32 = row[start : start + PART_COLUMNS]
        if offset < 0:
            assert self.files is not None
            return self.files.part(offset, length, crc32)
        data = self.arena[offset : offset + length]
        check_crc((data,), crc32)
        return data

    def read_into(self, row: list[int], start: int, field: Array, suffix: str, slot: NDArray[Any]) -> bool:
        """Read the part directly into its slot, if this worker reads it and it holds the raw numbers of the array."""
        offset, length, _, crc32 = row[start : start + PART_COLUMNS]
        if offset >= 0 or self.files is None:
            return False
        files = self.files
        return field.read_into(suffix, length, slot, lambda buffers: files.fill(offset, buffers, crc32))


@dataclass(frozen=True)
class Decoder:
    """The worker program for shards. Picklable, and the same for every worker, process or thread.

    Field i is read from the row's part i.
    """

    fields: Mapping[str, Field]
    layout: SlabLayout
    seed: int
    transform: Transform | None = None
    files: PageCacheFiles | None = None
    """The files in which workers read the parts that are not in the arena."""

    def start(self, arena: memoryview, slabs: memoryview) -> TaskRunner:
        """Return a function that decodes a task's samples into their slab."""
        decode = self._decode_into_slab if self.transform is None else self._transform_into_slab
        layout = self.layout
        parts = _PartBytes(arena, self.files)

        def run(task: Task) -> Extras:
            start = task.slab_start  # the views are made for each task: kept views would keep the slabs mapped
            slab = _SlabViews(
                layout.arrays(slabs, start), layout.ragged_buffers(slabs, start), layout.encoded_sizes(slabs, start)
            )
            extras: Extras = []
            for row in task.rows.tolist():
                try:
                    decode(row, task.epoch, parts, slab, extras)
                except PenstockError as error:
                    extras.append((row[0], BAD_SAMPLE, error))
            return extras

        return run

    @cached_property
    def _columns(self) -> tuple[_Column, ...]:
        return tuple(
            _Column(FIRST_PART + number * PART_COLUMNS, name, field, field.suffixes, field.fixed_shape)
            for number, (name, field) in enumerate(self.fields.items())
        )

    def _decode_into_slab(
        self, row: list[int], epoch: int, parts: _PartBytes, slab: _SlabViews, extras: Extras
    ) -> None:
        slot = row[0]
        with _ErrorContext("decode") as context:
            for start, name, field, suffixes, fixed_shape in self._columns:
                context.suffix = suffix = suffixes[row[start + 2]]
                if not fixed_shape:
                    slab.store(slot, name, field.decode_value(suffix, parts.find(row, start)), extras)
                    continue
                target = slab.arrays[name][slot, ...]
                if isinstance(field, Array) and parts.read_into(row, start, field, suffix, target):
                    continue
                encoded = field.decode_into(suffix, parts.find(row, start), target)
                encoded_sizes = slab.encoded_sizes.get(name)
                if encoded_sizes is not None:
                    encoded_sizes[slot] = encoded or NOT_ENCODED

    def _transform_into_slab(
        self, row: list[int], epoch: int, parts: _PartBytes, slab: _SlabViews, extras: Extras
    ) -> None:
        values = self._sample(row, epoch, parts)
        with _ErrorContext("transform"):
            self._store(values, row[0], slab, extras)

    def _store(self, values: dict[str, Any], slot: int, slab: _SlabViews, extras: Extras) -> None:
        missing = self.layout.slots.keys() - values.keys()
        if missing:  # the slot would still hold another sample
            raise SampleError(f"transform gave no {', '.join(map(repr, sorted(missing)))}", stage="transform")
        for name, value in values.items():
            if name not in slab.arrays:
                slab.store(slot, name, value, extras)
                continue
            array, target = np.asarray(value), slab.arrays[name][slot, ...]
            if array.shape != target.shape or array.dtype != target.dtype:
                raise SampleError(
                    f"transform gave {name!r} as {array.dtype}{list(array.shape)} "
                    f"where {target.dtype}{list(target.shape)} is expected",
                    stage="transform",
                )
            target[...] = array

    def sample(self, row: list[int], epoch: int, arena: memoryview) -> dict[str, Any]:
        """Return one sample in memory of its own: all fields, or what the transform makes of them."""
        return self._sample(row, epoch, _PartBytes(arena, None))

    def _sample(self, row: list[int], epoch: int, parts: _PartBytes) -> dict[str, Any]:
        values = self._decoded_fields(row, parts)
        if self.transform is None:
            return values
        with _ErrorContext("transform"):
            transformed = self.transform(values, sample_rng(self.seed, epoch, row[1]))
        if not isinstance(transformed, dict):
            raise SampleError(f"transform gave {type(transformed).__name__}, not a dict", stage="transform")
        return transformed

    def _decoded_fields(self, row: list[int], parts: _PartBytes) -> dict[str, Any]:
        values = {}
        with _ErrorContext("decode") as context:
            for start, name, field, suffixes, _ in self._columns:
                context.suffix = suffix = suffixes[row[start + 2]]
                values[name] = field.decode_value(suffix, parts.find(row, start))
        return values


class _ErrorContext:
    """Turns an exception into a PenstockError that names the stage and, by its suffix, the part."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.suffix: str | None = None
        """All that a worker knows of a member's name. `add_location` completes it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, PenstockError):
            error.at(member=self.suffix if error.shard is None else None, stage=self.stage)  # else it is the shard's
        elif isinstance(error, Exception | SystemExit):  # of a transform, or an unforeseen one of a decoder
            reason = f"{type(error).__name__}: {error}"
            raise SampleError(reason, member=self.suffix, stage=self.stage) from error

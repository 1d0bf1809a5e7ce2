"""The worker program for shards: finds parts in the arena, decodes them, and writes them into the slab."""

from __future__ import annotations

import sys
import traceback
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import BAD_SAMPLE, Extras, Task, TaskRunner
from penstock.core.slab_layout import EncodedSizes, RaggedBuffer, SlabLayout, store_ragged
from penstock.core.types import Ids
from penstock.data.batch.decoded_batch import PADDING
from penstock.data.decode.rng import sample_rng, seed_global_rngs, uniform_draws
from penstock.data.fields.array import Array
from penstock.data.fields.base import (
    NOT_ENCODED,
    Field,
    SampleContext,
    fields_with_parts,
    has_fixed_shape,
    write_slot,
)
from penstock.data.read.block_layout import FIRST_PART, PART_COLUMNS
from penstock.data.read.checksum import check_crc
from penstock.data.read.page_cache_read import PageCacheFiles
from penstock.data.read.sample_index import MISSING
from penstock.errors import PenstockError, SampleError

Transform = Callable[[dict[str, Any], np.random.Generator], dict[str, Any]]
CollateFunction = Callable[[list[Any]], Any]
KEY, GEOMETRY = "__key__", "__geometry__"
"""Names under which a transform finds the sample's key, and the geometry of each image. It cannot change them."""


class _Column(NamedTuple):
    """A field with its properties, which some fields compute anew at each access."""

    start: int | None
    """Column of a row at which its part begins; None for a field that reads no part."""
    name: str
    field: Field
    suffixes: tuple[str, ...]
    fixed_shape: bool
    random_numbers: int
    may_be_read_into: bool
    """Whether the field can read its part from the file straight into its slot."""
    keeps_geometry: bool
    """Whether other fields or the transform need the geometry of its image."""


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


_Draws = Mapping[str, Sequence[float]]
"""The random numbers of one sample, by field."""
_NO_DRAWS: _Draws = {}
_NO_PART = memoryview(b"")


@dataclass(frozen=True)
class Decoder:
    """The worker program for shards. Picklable, and the same for every worker, process or thread.

    The i-th field that reads a part is read from the row's part i.
    """

    fields: Mapping[str, Field]
    layout: SlabLayout
    seed: int
    transform: Transform | None = None
    files: PageCacheFiles | None = None
    """The files in which workers read the parts that are not in the arena."""
    key_columns: int = 0
    """Columns at the end of each row that hold the sample's key, for the transform."""
    seeds_globals: bool = False
    """Whether the global random generators are seeded before each call of the transform."""

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
            for row, draws in zip(task.rows.tolist(), self._draws(task.epoch, task.rows[:, 1]), strict=True):
                try:
                    decode(row, draws, task.epoch, parts, slab, extras)
                except PenstockError as error:
                    extras.append((row[0], BAD_SAMPLE, error))
            return extras

        return run

    @cached_property
    def _columns(self) -> tuple[_Column, ...]:
        """The fields in the order in which they are decoded: after the image that they are `like`."""
        starts = {
            name: FIRST_PART + number * PART_COLUMNS for number, name in enumerate(fields_with_parts(self.fields))
        }
        linked = {field.like for field in self.fields.values()}
        names = sorted(self.fields, key=lambda name: self.fields[name].like is not None)
        return tuple(
            _Column(
                starts.get(name),
                name,
                self.fields[name],
                self.fields[name].suffixes,
                has_fixed_shape(self.fields, name),
                self.fields[name].random_numbers,
                isinstance(self.fields[name], Array),
                self.fields[name].has_geometry and (name in linked or self.transform is not None),
            )
            for name in names
        )

    def _draws(self, epoch: int, samples: Ids) -> Sequence[_Draws]:
        """Return the random numbers of each sample by field, for the fields that use some."""
        random = [column for column in self._columns if column.random_numbers]
        if not random:
            return [_NO_DRAWS] * len(samples)
        of_fields = [
            uniform_draws(self.seed ^ zlib.crc32(each.name.encode()), epoch, samples, each.random_numbers).tolist()
            for each in random
        ]
        names = [each.name for each in random]
        return [dict(zip(names, of_sample, strict=True)) for of_sample in zip(*of_fields, strict=True)]

    def _decode_into_slab(
        self, row: list[int], draws: _Draws, epoch: int, parts: _PartBytes, slab: _SlabViews, extras: Extras
    ) -> None:
        slot = row[0]
        sample = SampleContext()
        arrays, encoded_sizes = slab.arrays, slab.encoded_sizes
        suffix: str | None = None
        part, part_offset, part_length = _NO_PART, 0, -1
        try:
            # Every line of this loop costs each sample some 50 ns, which counts for small images.
            for start, name, field, suffixes, fixed_shape, random_numbers, direct, keeps_geometry in self._columns:
                if random_numbers:
                    sample.draws = draws[name]
                encoded = None
                if start is None or (choice := row[start + 2]) == MISSING:
                    suffix = None
                    value = _value_without_part(start, field, sample)
                    if fixed_shape:
                        write_slot(value, arrays[name][slot, ...])
                    else:
                        slab.store(slot, name, value, extras)
                else:
                    suffix = suffixes[choice]
                    offset, length = row[start], row[start + 1]
                    target = arrays[name][slot, ...] if fixed_shape else None
                    if direct and offset < 0 and target is not None:
                        assert isinstance(field, Array)
                        if parts.read_into(row, start, field, suffix, target):
                            continue
                    if offset != part_offset or length != part_length:  # else the last field has read the same part
                        part, part_offset, part_length = parts.find(row, start), offset, length
                    if target is None:
                        slab.store(slot, name, field.decode_value(suffix, part, sample), extras)
                    else:
                        encoded = field.decode_into(suffix, part, target, sample)
                if encoded_sizes and name in encoded_sizes:  # in any case: the slot may hold an earlier sample's note
                    encoded_sizes[name][slot] = encoded or NOT_ENCODED
                if keeps_geometry and sample.geometry is not None:
                    sample.geometries[name] = sample.geometry
        except PenstockError as error:
            _complete(error, suffix, "decode")
            raise
        except (Exception, SystemExit) as error:
            raise _unforeseen(error, suffix, "decode") from error

    def _transform_into_slab(
        self, row: list[int], draws: _Draws, epoch: int, parts: _PartBytes, slab: _SlabViews, extras: Extras
    ) -> None:
        values = self._sample(row, draws, epoch, parts)
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
            if array.shape != target.shape or array.dtype.newbyteorder("=") != target.dtype:
                raise SampleError(
                    f"transform gave {name!r} as {array.dtype}{list(array.shape)} "
                    f"where {target.dtype}{list(target.shape)} is expected",
                    stage="transform",
                )
            target[...] = array

    def start_samples(self, arena: memoryview) -> Callable[[Task], list[Any]]:
        """Return a function that decodes a task's samples into dicts, for a collate_fn of the user."""
        parts = _PartBytes(arena, self.files)

        def run(task: Task) -> list[Any]:
            samples: list[Any] = []
            first_padding = len(task.rows) - task.padding
            draws_of = self._draws(task.epoch, task.rows[:, 1])
            for number, (row, draws) in enumerate(zip(task.rows.tolist(), draws_of, strict=True)):
                try:
                    values = self._sample(row, draws, task.epoch, parts)
                    samples.append({**values, KEY: self._key(row), PADDING: number >= first_padding})
                except PenstockError as error:
                    samples.append(error)
            return samples

        return run

    def sample(self, row: list[int], epoch: int, arena: memoryview) -> dict[str, Any]:
        """Return one sample in memory of its own: all fields, or what the transform makes of them."""
        (draws,) = self._draws(epoch, np.array(row[1:2], np.int64))
        return self._sample(row, draws, epoch, _PartBytes(arena, None))

    def _sample(self, row: list[int], draws: _Draws, epoch: int, parts: _PartBytes) -> dict[str, Any]:
        sample = SampleContext()
        values = self._decoded_fields(row, draws, sample, parts)
        if self.transform is None:
            return values
        declared = {GEOMETRY: values[GEOMETRY]} if GEOMETRY in values else {}
        values[KEY] = self._key(row)
        values[GEOMETRY] = sample.geometries
        if self.seeds_globals:
            seed_global_rngs(self.seed, epoch, row[1])
        with _ErrorContext("transform"):
            transformed = self.transform(values, sample_rng(self.seed, epoch, row[1]))
            if not isinstance(transformed, dict):
                raise SampleError(f"transform gave {type(transformed).__name__}, not a dict", stage="transform")
            made = {
                name: _as_array(value) for name, value in transformed.items() if name not in (KEY, GEOMETRY, PADDING)
            }
        return made | declared

    def _decoded_fields(
        self, row: list[int], draws: _Draws, sample: SampleContext, parts: _PartBytes
    ) -> dict[str, Any]:
        values: dict[str, Any] = dict.fromkeys(self.fields)
        part, place = _NO_PART, [0, -1]
        with _ErrorContext("decode") as context:
            for column in self._columns:
                start = column.start
                if column.random_numbers:
                    sample.draws = draws[column.name]
                if start is None or row[start + 2] == MISSING:
                    context.suffix = None
                    values[column.name] = _value_without_part(start, column.field, sample)
                else:
                    context.suffix = suffix = column.suffixes[row[start + 2]]
                    if row[start : start + 2] != place:  # else the last field has read the same part
                        part, place = parts.find(row, start), row[start : start + 2]
                    values[column.name] = column.field.decode_value(suffix, part, sample)
                if column.keeps_geometry and sample.geometry is not None:
                    sample.geometries[column.name] = sample.geometry
        return values

    def _key(self, row: list[int]) -> str:
        """Return the sample's key, which is in the last columns of the row."""
        columns = row[len(row) - self.key_columns :]
        return np.array(columns, "<i8").tobytes().rstrip(b"\0").decode()


@dataclass(frozen=True)
class DecodedSamples:
    """The samples of shards for `CollateProgram`: a dict each, with the key, and whether it is padding."""

    decoder: Decoder

    def start(self, arena: memoryview) -> Callable[[Task], list[Any]]:
        """Return a function that decodes a task's samples."""
        return self.decoder.start_samples(arena)

    def repeated(self, sample: Any) -> Any:
        """Return a sample as it is put in the place of a bad one: as padding."""
        return {**sample, PADDING: True}


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
            _complete(error, self.suffix, self.stage)
        elif isinstance(error, Exception | SystemExit):
            raise _unforeseen(error, self.suffix, self.stage) from error


def _complete(error: PenstockError, suffix: str | None, stage: str) -> None:
    error.at(member=suffix if error.shard is None else None, stage=stage)  # else the error is the shard's


def _unforeseen(error: BaseException, suffix: str | None, stage: str) -> SampleError:
    """Return the error of the sample for an exception of a transform, or an unforeseen one of a decoder."""
    located = SampleError(f"{type(error).__name__}: {error}", member=suffix, stage=stage)
    located.add_note("".join(traceback.format_exception(error)).rstrip())  # sent from a worker, unlike a cause
    return located


def _value_without_part(start: int | None, field: Field, sample: SampleContext) -> Any:
    """Return the value of a field that reads no part, or of an optional field whose part the sample lacks."""
    return field.decode_value("", memoryview(b""), sample) if start is None else field.missing_value(sample)


def _as_array(value: Any) -> Any:
    """Return a number or a tensor that a transform has made as an array; anything else is returned as it is."""
    if isinstance(value, bool | int | float):
        return np.asarray(value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    return value

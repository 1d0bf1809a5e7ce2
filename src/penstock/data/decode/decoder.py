"""What workers do with a row: find the parts in the arena, decode them, put them into the slot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import BAD_SAMPLE, Task, TaskRunner
from penstock.core.slab_layout import EncodedSizes, RaggedBuffer, SlabLayout, store_ragged
from penstock.data.decode.rng import sample_rng
from penstock.data.fields.array import Array
from penstock.data.fields.base import NOT_ENCODED, Field
from penstock.data.read.block_layout import PARTS, WIDTH
from penstock.data.read.page_cache_read import PageCacheFiles, check_crc
from penstock.errors import PenstockError, SampleError

Transform = Callable[[dict[str, Any], np.random.Generator], dict[str, Any]]
Extras = list[tuple[int, str, Any]]


class _Column(NamedTuple):
    """A field, and what it says of itself: some work that out anew each time they are asked."""

    at: int
    """Where in a row its part is described."""
    name: str
    field: Field
    suffixes: tuple[str, ...]
    fixed_shape: bool


class _SlabViews(NamedTuple):
    """Where the samples of a batch go."""

    arrays: Mapping[str, NDArray[Any]]
    rooms: Mapping[str, RaggedBuffer]
    notes: Mapping[str, EncodedSizes]

    def send(self, slot: int, name: str, value: Any, extras: Extras) -> None:
        """A value without a fixed shape: into its room, or over the pipe if it has none that is large enough."""
        rooms = self.rooms.get(name)
        placed = store_ragged(value, rooms[slot]) if rooms is not None and slot < len(rooms) else None
        extras.append((slot, name, value if placed is None else placed))


class _PartBytes(NamedTuple):
    """Where a worker finds the bytes of a part: in the arena, or in a file that it reads itself."""

    arena: memoryview
    files: PageCacheFiles | None

    def find(self, row: list[int], at: int) -> memoryview:
        """If they are what was written; good until the next part is asked for."""
        place, length, _, crc32 = row[at : at + WIDTH]
        if place < 0:
            assert self.files is not None
            return self.files.part(place, length, crc32)
        data = self.arena[place : place + length]
        check_crc((data,), crc32)
        return data

    def read_into(self, row: list[int], at: int, field: Array, suffix: str, slot: NDArray[Any]) -> bool:
        """Have the part read into its slot, if the worker is to read it and it holds the numbers as they are."""
        place, length, _, crc32 = row[at : at + WIDTH]
        if place >= 0 or self.files is None:
            return False
        files = self.files
        return field.read_into(suffix, length, slot, lambda buffers: files.fill(place, buffers, crc32))


@dataclass(frozen=True)
class Decoder:
    """Picklable, and the same for every worker, process or thread. Field i is read from the row's part i."""

    fields: Mapping[str, Field]
    layout: SlabLayout
    seed: int
    transform: Transform | None = None
    files: PageCacheFiles | None = None
    """Where workers find what nobody has fetched for them."""

    def start(self, arena: memoryview, slabs: memoryview) -> TaskRunner:
        """A function from tasks to what does not fit into a slab."""
        decode = self._plain if self.transform is None else self._transformed
        layout = self.layout
        parts = _PartBytes(arena, self.files)

        def run(task: Task) -> Extras:
            start = task.slab_start  # views are made for each task: kept, they would keep the slabs when we are closed
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
            _Column(PARTS + number * WIDTH, name, field, field.suffixes, field.fixed_shape)
            for number, (name, field) in enumerate(self.fields.items())
        )

    def _plain(self, row: list[int], epoch: int, parts: _PartBytes, slab: _SlabViews, extras: Extras) -> None:
        slot = row[0]
        with _ErrorContext("decode") as failing:
            for at, name, field, suffixes, fixed_shape in self._columns:
                failing.suffix = suffix = suffixes[row[at + 2]]
                if not fixed_shape:
                    slab.send(slot, name, field.decode_value(suffix, parts.find(row, at)), extras)
                    continue
                target = slab.arrays[name][slot, ...]
                if isinstance(field, Array) and parts.read_into(row, at, field, suffix, target):
                    continue
                encoded = field.decode_into(suffix, parts.find(row, at), target)
                notes = slab.notes.get(name)
                if notes is not None:
                    notes[slot] = encoded or NOT_ENCODED

    def _transformed(self, row: list[int], epoch: int, parts: _PartBytes, slab: _SlabViews, extras: Extras) -> None:
        given = self._sample(row, epoch, parts)
        with _ErrorContext("transform"):
            self._store(given, row[0], slab, extras)

    def _store(self, given: dict[str, Any], number: int, slab: _SlabViews, extras: Extras) -> None:
        missing = self.layout.slots.keys() - given.keys()
        if missing:  # the slot would still hold another sample
            raise SampleError(f"transform gave no {', '.join(map(repr, sorted(missing)))}", stage="transform")
        for name, value in given.items():
            if name not in slab.arrays:
                slab.send(number, name, value, extras)
                continue
            array, slot = np.asarray(value), slab.arrays[name][number, ...]
            if array.shape != slot.shape or array.dtype != slot.dtype:
                raise SampleError(
                    f"transform gave {name!r} as {array.dtype}{list(array.shape)} "
                    f"where {slot.dtype}{list(slot.shape)} is expected",
                    stage="transform",
                )
            slot[...] = array

    def sample(self, row: list[int], epoch: int, arena: memoryview) -> dict[str, Any]:
        """One sample in memory of its own: all fields, or what the transform makes of them."""
        return self._sample(row, epoch, _PartBytes(arena, None))

    def _sample(self, row: list[int], epoch: int, parts: _PartBytes) -> dict[str, Any]:
        values = self._fields(row, parts)
        if self.transform is None:
            return values
        with _ErrorContext("transform"):
            given = self.transform(values, sample_rng(self.seed, epoch, row[1]))
        if not isinstance(given, dict):
            raise SampleError(f"transform gave {type(given).__name__}, not a dict", stage="transform")
        return given

    def _fields(self, row: list[int], parts: _PartBytes) -> dict[str, Any]:
        values = {}
        with _ErrorContext("decode") as failing:
            for at, name, field, suffixes, _ in self._columns:
                failing.suffix = suffix = suffixes[row[at + 2]]
                values[name] = field.decode_value(suffix, parts.find(row, at))
        return values


class _ErrorContext:
    """What goes wrong inside becomes an error of ours that says at which stage and, by its suffix, with which part."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.suffix: str | None = None
        """All a worker knows of a part's name; whoever knows the sample completes it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, PenstockError):
            error.at(member=self.suffix if error.shard is None else None, stage=self.stage)  # else it is the shard's
        elif isinstance(error, Exception | SystemExit):  # a transform's, or a decoder's that we did not foresee
            reason = f"{type(error).__name__}: {error}"
            raise SampleError(reason, member=self.suffix, stage=self.stage) from error

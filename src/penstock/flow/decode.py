"""What workers do with a row: find the parts in the arena, decode them, put them into the slot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.layout import SlabLayout
from penstock.core.work import BAD, Runner, Task
from penstock.errors import PenstockError, SampleError
from penstock.flow.fields.base import Field

Transform = Callable[[dict[str, Any], np.random.Generator], dict[str, Any]]
Arrays = Mapping[str, NDArray[Any]]
Extras = list[tuple[int, str, Any]]


@dataclass(frozen=True)
class Decoder:
    """Picklable, and the same for every worker, process or thread. Field i is read from the row's part i."""

    fields: Mapping[str, Field]
    layout: SlabLayout
    seed: int
    transform: Transform | None = None

    def start(self, arena: memoryview, slabs: memoryview) -> Runner:
        """A function from tasks to what does not fit into a slab."""
        decode = self._plain if self.transform is None else self._transformed

        def run(task: Task) -> Extras:
            arrays = self.layout.arrays(slabs, task.slab_start)
            extras: Extras = []
            for row in task.rows.tolist():
                try:
                    decode(row, task.epoch, arena, arrays, extras)
                except PenstockError as error:
                    extras.append((row[0], BAD, error))
                except Exception as error:  # a transform's, or a decoder's that we did not foresee
                    extras.append((row[0], BAD, SampleError(f"{type(error).__name__}: {error}", stage="decode")))
            return extras

        return run

    def _plain(self, row: list[int], epoch: int, arena: memoryview, arrays: Arrays, extras: Extras) -> None:
        slot = row[0]
        at = 2
        for name, field in self.fields.items():
            offset, length, choice = row[at : at + 3]
            at += 3
            data = arena[offset : offset + length]
            if field.fixed:
                field.decode_into(field.suffixes[choice], data, arrays[name][slot, ...])
            else:
                extras.append((slot, name, field.decode(field.suffixes[choice], data)))

    def _transformed(self, row: list[int], epoch: int, arena: memoryview, arrays: Arrays, extras: Extras) -> None:
        values = self.sample(row, arena)
        assert self.transform is not None
        given = self.transform(values, self.rng(epoch, row[1]))
        missing = self.layout.slots.keys() - given.keys()
        if missing:  # the slot would still hold another sample
            raise SampleError(f"transform gave no {', '.join(map(repr, sorted(missing)))}", stage="transform")
        for name, value in given.items():
            if name not in arrays:
                extras.append((row[0], name, value))
                continue
            array, slot = np.asarray(value), arrays[name][row[0], ...]
            if array.shape != slot.shape or array.dtype != slot.dtype:
                raise SampleError(
                    f"transform gave {name!r} as {array.dtype}{list(array.shape)} "
                    f"where {slot.dtype}{list(slot.shape)} is expected",
                    stage="transform",
                )
            slot[...] = array

    def rng(self, epoch: int, sample: int) -> np.random.Generator:
        """A sample's own dice: the same whichever worker throws them."""
        return np.random.Generator(np.random.PCG64([self.seed, epoch, sample]))

    def sample(self, row: list[int], arena: memoryview) -> dict[str, Any]:
        """All fields of one sample, in memory of their own."""
        values = {}
        at = 2
        for name, field in self.fields.items():
            offset, length, choice = row[at : at + 3]
            at += 3
            values[name] = field.decode(field.suffixes[choice], arena[offset : offset + length])
        return values

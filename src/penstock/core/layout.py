"""How a batch lies in its slab: shared memory in which it is put together slot by slot, where it will be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

PAGE = 4096


@dataclass(frozen=True, slots=True)
class Slot:
    """What one sample puts into one array of the batch."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Bytes per sample."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class SlabLayout:
    """Where each array of a batch lies in its slab. Every array starts on a page, as pinning and O_DIRECT want it."""

    slots: Mapping[str, Slot]
    batch_size: int

    @property
    def offsets(self) -> dict[str, int]:
        """First byte of each array."""
        places, at = {}, 0
        for name, slot in self.slots.items():
            places[name] = at
            at += -(-slot.size * self.batch_size // PAGE) * PAGE
        return places

    @property
    def size(self) -> int:
        """Bytes of a whole slab."""
        return max(PAGE, sum(-(-slot.size * self.batch_size // PAGE) * PAGE for slot in self.slots.values()))

    def arrays(self, memory: memoryview, start: int = 0) -> dict[str, NDArray[Any]]:
        """The batch's arrays over the slab that begins at `start`: views, nothing is copied."""
        return {
            name: np.ndarray((self.batch_size, *slot.shape), slot.dtype, memory, start + self.offsets[name])
            for name, slot in self.slots.items()
        }

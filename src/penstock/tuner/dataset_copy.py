"""A copy of a dataset, to load from in this very process.

Many datasets open files at the first access, and worker processes that inherit an open file read from each other's
places in it. So nothing is ever loaded from the user's own dataset in this process.
"""

from __future__ import annotations

import io
import pickle
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

COPY_BYTES_MAX = 256 << 20
"""Of a dataset, what it shares not counted."""
_SHARED = (torch.Tensor, np.ndarray, FunctionType, ModuleType, type)


def copy_dataset(dataset: Any) -> Any | None:
    """A copy that shares arrays, tensors and code with the dataset; None where none can be made."""
    file = _Capped()
    sharing = _Sharing(file, protocol=5)
    try:
        sharing.dump(dataset)
        file.seek(0)
        return _Shared(file, sharing.shared).load()
    except Exception:  # whatever a dataset holds may refuse in its own way
        return None


class _Capped(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + len(data) > COPY_BYTES_MAX:
            raise OverflowError(f"more than {COPY_BYTES_MAX} bytes")
        return super().write(data)


class _Sharing(pickle.Pickler):
    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self.shared: list[Any] = []

    def persistent_id(self, thing: Any) -> int | None:
        """Its place among the shared, for what both copies may use."""
        if isinstance(thing, _SHARED):
            self.shared.append(thing)
            return len(self.shared) - 1
        return None


class _Shared(pickle.Unpickler):
    """Reads what `_Sharing` has just written, in this process."""

    def __init__(self, file: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, place: Any) -> Any:
        """What both copies use."""
        return self._shared[place]

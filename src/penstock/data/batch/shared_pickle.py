"""Pickles whose large buffers stay outside: those of tensors, arrays and Arrow tables are placed in shared memory once.

So a batch crosses from a worker to the training loop without being copied through a pipe, and a dataset that is sent to
processes which are not forked takes its memory once for all of them.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

SMALL_BYTES = 512
"""Buffers up to this size are part of the pickle: placing them elsewhere would cost more."""
ALIGNMENT = 64
"""Buffers begin at a multiple of this, as torch allocates them."""


class _TensorPickler:
    """Pickles plain tensors by their storage, so that tensors that share one still do so afterwards."""

    def __init__(self, file: io.BytesIO, callback: Callable[[pickle.PickleBuffer], Any]) -> None:
        super().__init__(file, protocol=5, buffer_callback=callback)  # type: ignore[call-arg]
        self._storages: dict[int, Any] = {}
        """Storages by address: the memo of pickle recognises one only if it is the same object each time."""

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            if not _is_plain(value):
                return self._otherwise(value)
            storage = value.untyped_storage()
            storage = self._storages.setdefault(storage._cdata, storage)
            geometry = value.dtype, value.storage_offset(), tuple(value.size()), value.stride()
            return _tensor, (storage, *geometry, value.requires_grad, kind is torch.nn.Parameter)
        if kind is torch.UntypedStorage and value.device.type == "cpu":
            return _storage, (pickle.PickleBuffer(_bytes_of(value)),)
        return self._otherwise(value)

    def _otherwise(self, value: Any) -> Any:
        reducer = getattr(super(), "reducer_override", None)  # of cloudpickle; that of pickle has none
        return NotImplemented if reducer is None else reducer(value)


@cache
def _pickler(base: Any) -> Any:
    return type("SharedPickler", (_TensorPickler, base), {})


def dumps(value: Any, pickler: Any = pickle.Pickler) -> tuple[bytes, list[memoryview]]:
    """Return the pickle and the buffers that are not part of it; `pickler` handles what is not a tensor."""
    buffers: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes <= SMALL_BYTES:
            return True
        buffers.append(raw)
        return False

    file = io.BytesIO()
    shared = _pickler(pickler)
    shared(file, keep).dump(value)
    return file.getvalue(), buffers


def loads(data: bytes | memoryview, buffers: Sequence[Any]) -> Any:
    """Return the value, whose tensors and arrays lie over the buffers."""
    return pickle.loads(data, buffers=buffers)  # noqa: S301 (a process of this program made it)


def aligned(size: int) -> int:
    """Round a size up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and tensor.grad_fn is None
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.is_nested)
        and not vars(tensor)  # attributes of the user
    )


def _bytes_of(storage: torch.UntypedStorage) -> Any:
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy()


def _storage(buffer: Any) -> torch.UntypedStorage:
    view = np.frombuffer(buffer, np.uint8)
    return (
        torch.from_numpy(view).untyped_storage() if len(view) else torch.empty(0, dtype=torch.uint8).untyped_storage()
    )


def _tensor(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    offset: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool,
    is_parameter: bool,
) -> torch.Tensor:
    tensor = torch.empty(0, dtype=dtype).set_(storage, offset, size, stride)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)

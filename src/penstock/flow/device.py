"""From a finished slab to what the training loop gets: tensors over the same memory, or on the device."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.errors import SettingError

Arrays = dict[str, NDArray[Any]]
Key = TypeVar("Key")


class _Window:
    """One array of a slab, as the owner of every view of it.

    numpy lets a view of a view forget the one between, but never an owner that is not an array: so whatever the user
    makes of a delivered array or tensor, this object lives exactly as long as somebody can look at the memory.
    """

    def __init__(self, array: NDArray[Any], lease: _Lease) -> None:
        self.__array_interface__ = array.__array_interface__
        self.lease = lease


class _Lease:
    """Held by all windows of a batch. `memory` is a view of its own, so the mapping cannot be closed under it."""

    def __init__(self, slabs: memoryview) -> None:
        self.memory = memoryview(slabs)


def lease(
    arrays: Mapping[Key, NDArray[Any]], slabs: memoryview, give_back: Callable[[], None]
) -> dict[Key, NDArray[Any]]:
    """The same arrays; `give_back` is called once, when nobody can see any of them any more."""
    held = _Lease(slabs)
    weakref.finalize(held, give_back).atexit = False
    return {name: np.asarray(_Window(array, held)) for name, array in arrays.items()}


def copy(arrays: Mapping[Key, NDArray[Any]]) -> dict[Key, NDArray[Any]]:
    """The same arrays in memory of their own."""
    return {name: array.copy() for name, array in arrays.items()}


def to_tensors(arrays: Mapping[str, NDArray[Any]], device: str) -> dict[str, Any]:
    """Tensors; on the CPU over the same memory."""
    try:
        import torch
    except ImportError as error:
        raise SettingError("torch is not installed", advice='Install it, or use device="numpy"') from error
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    if device == "cpu":
        return tensors
    return {name: tensor.to(device) for name, tensor in tensors.items()}

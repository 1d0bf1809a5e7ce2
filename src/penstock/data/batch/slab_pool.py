"""Lends slabs to the training loop: arrays over a slab keep it until the last of them is garbage."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.data.batch.decoded_batch import Views

Key = TypeVar("Key")


class SlabPool:
    """The slabs of an engine. All but one may be lent at a time: the engine needs the last one to go on."""

    def __init__(self, memory: memoryview, count: int, release: Callable[[int], None]) -> None:
        """`release` returns a slab to the engine, by its number."""
        self.memory = memory
        self._max_lent = count - 1
        self._release: Callable[[int], None] | None = release
        self._lent: set[int] = set()  # changed by finalizers, in any thread: single operations on a set are atomic

    def lend(self, slab: int, views: Views) -> Views:
        """Return the views of the slab; return copies if too many slabs are lent, as when a user keeps all batches."""
        if not views or len(self._lent) >= self._max_lent:
            copies = copy_arrays(views)
            self.give_back(slab)
            return copies
        self._lent.add(slab)
        return lease_arrays(views, self.memory, lambda: self.give_back(slab))

    def give_back(self, slab: int) -> None:
        """Return a slab to the engine, unless the pool is closed."""
        self._lent.discard(slab)
        release = self._release  # read once: another thread may be closing the pool
        if release is not None:
            release(slab)

    def close(self) -> None:
        """Stop returning slabs, because the engine ends. Arrays that are lent stay valid."""
        self._release = None


class _SlabArray:
    """One array of a slab, as the owner of every view of it.

    A numpy view of a view may drop its reference to the view between, but never to an owner that is not an array. So
    this object lives exactly as long as any array or tensor that the user makes of a delivered one.
    """

    def __init__(self, array: NDArray[Any], lease: _Lease) -> None:
        self.__array_interface__ = array.__array_interface__
        self.lease = lease


class _Lease:
    """Held by all arrays of a batch. `memory` is a view of its own, so that the memory stays mapped."""

    def __init__(self, slabs: memoryview) -> None:
        self.memory = memoryview(slabs)


def lease_arrays(
    arrays: Mapping[Key, NDArray[Any]], slabs: memoryview, give_back: Callable[[], None]
) -> dict[Key, NDArray[Any]]:
    """Return the same arrays; `give_back` is called once, when none of them and no view of them is left."""
    held = _Lease(slabs)
    weakref.finalize(held, give_back).atexit = False
    return {name: np.asarray(_SlabArray(array, held)) for name, array in arrays.items()}


def copy_arrays(arrays: Mapping[Key, NDArray[Any]]) -> dict[Key, NDArray[Any]]:
    """Return copies of the arrays."""
    return {name: array.copy() for name, array in arrays.items()}

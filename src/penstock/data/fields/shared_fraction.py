"""A number that one process turns while its workers read it: so much of the pictures is for the card.

Once it is sent to a worker it lies in a page of nameless memory, which workers find among our descriptors in /proc.
Where there is no such thing, a worker keeps the number that it was sent.
"""

from __future__ import annotations

import mmap
import os
import weakref

import numpy as np
from numpy.typing import NDArray

_NAME = "penstock-dial"
_BYTES = 8

Cell = NDArray[np.float64]


class SharedFraction:
    """Picklable: what is made of it in another process shows what is set here."""

    def __init__(self, value: float) -> None:
        self._cell: Cell = np.array([value])
        self._path: str | None = None

    @property
    def value(self) -> float:
        """As last set."""
        return float(self._cell[0])

    @value.setter
    def value(self, value: float) -> None:
        self._cell[0] = value

    def __getstate__(self) -> tuple[str | None, float]:
        if self._path is None and hasattr(os, "memfd_create"):
            self._share()
        return self._path, self.value

    def __setstate__(self, state: tuple[str | None, float]) -> None:
        self._path, value = state
        self._cell = np.array([value])
        if self._path is not None:
            try:
                self._cell = _attached(self._path)
            except (OSError, ValueError):  # whoever turned it is gone, or /proc is not what it is elsewhere
                self._path = None

    def _share(self) -> None:
        descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, descriptor)
        os.ftruncate(descriptor, _BYTES)
        cell = np.frombuffer(mmap.mmap(descriptor, _BYTES), np.float64)
        cell[0] = self.value
        self._cell, self._path = cell, f"/proc/{os.getpid()}/fd/{descriptor}"


def _attached(path: str) -> Cell:
    """The same memory, unless the descriptor has become something else's."""
    if _NAME not in os.readlink(path):
        raise ValueError(f"{path} is not a dial")
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return np.frombuffer(mmap.mmap(descriptor, _BYTES, prot=mmap.PROT_READ), np.float64)
    finally:
        os.close(descriptor)

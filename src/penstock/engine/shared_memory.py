"""Memory that several processes see: nameless, so nothing is left behind whatever happens to us.

On Linux a memfd: `multiprocessing.shared_memory` leaves segments in /dev/shm after a crash, and containers give that
64 MB. Elsewhere an unlinked temporary file, which the page cache keeps in memory.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import tempfile
from contextlib import suppress
from functools import cache
from typing import Self

_POPULATE_WRITE = 23
"""madvise: make these pages now and map them, whatever they hold. Linux 5.14 and later; no name in Python."""


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _madvise(address: int, length: int, advice: int) -> None:
    """Whatever comes of it: it is advice."""
    _libc().madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), ctypes.c_int(advice))


class SharedMemory:
    """A mapping and the descriptor it came from; pages cost memory only once they are touched."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        os.set_inheritable(fd, False)  # no program that a worker's code starts is to keep it
        self.size = size
        self.map = mmap.mmap(fd, size)
        self.view = memoryview(self.map)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self.map)) if sys.platform == "linux" else 0

    @classmethod
    def create(cls, size: int, name: str) -> Self:
        """New memory; `name` shows in /proc/PID/maps and nowhere else."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create(f"penstock-{name}", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        try:
            os.ftruncate(fd, size)
            return cls(fd, size)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def holding(cls, data: bytes, name: str) -> Self:
        """New memory with these bytes in it."""
        memory = cls.create(max(1, len(data)), name)
        memory.view[: len(data)] = data
        return memory

    def settle(self, start: int, length: int) -> None:
        """Make these pages and map them here, in one call: a fault for every page would cost four times as much.

        Not by `mmap.madvise`, which keeps the interpreter's lock meanwhile. Where the system cannot, or has no memory
        to give, the faults come as they would have come.
        """
        if self._address and 0 <= start < start + length <= self.size:
            _madvise(self._address + start, length, _POPULATE_WRITE)

    def close(self) -> None:
        """Let go. The mapping goes when the last view of it goes: a delivered batch may still look at it.

        It must not be closed by hand: numpy keeps a reference to the mapping but no claim on its buffer, so closing
        would succeed and leave its arrays pointing at nothing.
        """
        if self.fd >= 0:
            self._address = 0
            os.close(self.fd)
            self.fd = -1
            with suppress(BufferError):  # somebody looks through the view itself
                self.view.release()
            del self.map

    def __repr__(self) -> str:
        return f"SharedMemory({self.size} bytes, fd {self.fd})"

"""Memory that several processes share. It has no name, so nothing is left behind if a process is killed.

On Linux it is a memfd: `multiprocessing.shared_memory` leaves segments in /dev/shm after a crash, and containers often
limit /dev/shm to 64 MB. Elsewhere it is an unlinked temporary file, which the page cache keeps in memory.
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
"""Advice to madvise: create and map these pages now, and keep their content. Linux 5.14; Python has no name for it."""


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _madvise(address: int, length: int, advice: int) -> None:
    """Call madvise and ignore its result: it is only advice."""
    _libc().madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), ctypes.c_int(advice))


class SharedMemory:
    """A mapping and the descriptor it was made from. A page takes memory only once it has been touched."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        os.set_inheritable(fd, False)  # programs that a worker's code starts must not keep it open
        self.size = size
        self.map = mmap.mmap(fd, size)
        self.view = memoryview(self.map)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self.map)) if sys.platform == "linux" else 0

    @classmethod
    def create(cls, size: int, name: str) -> Self:
        """Return new memory; its name appears only in /proc/PID/maps."""
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
    def from_bytes(cls, data: bytes, name: str) -> Self:
        """Return new memory that holds these bytes."""
        memory = cls.create(max(1, len(data)), name)
        memory.view[: len(data)] = data
        return memory

    def prefault(self, start: int, length: int) -> None:
        """Create these pages and map them in this process, in one call.

        A fault for each page would take four times as long. `mmap.madvise` is not used, because it holds the GIL
        meanwhile. If the system does not support this, or has no memory left, the pages are created by faults as usual.
        """
        if self._address and 0 <= start < start + length <= self.size:
            _madvise(self._address + start, length, _POPULATE_WRITE)

    def close(self) -> None:
        """Close the descriptor. The mapping lives until its last view is gone: a delivered batch may still use it.

        It must not be closed explicitly: numpy keeps a reference to the mapping but no claim on its buffer, so closing
        would succeed and leave arrays that point to unmapped memory.
        """
        if self.fd >= 0:
            self._address = 0
            os.close(self.fd)
            self.fd = -1
            with suppress(BufferError):  # an array uses the view itself
                self.view.release()
            del self.map

    def __repr__(self) -> str:
        return f"SharedMemory({self.size} bytes, fd {self.fd})"

"""Reads of small files in /proc that do not release the GIL.

Python releases the GIL around every system call. A thread that acquires it again takes it from the training, which
costs the training many times the few microseconds of a read from /proc. This module imports the standard library only,
because it also runs in torch's worker processes.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress

_LIBC = ctypes.PyDLL(None, use_errno=True) if sys.platform == "linux" else None
_READ_BYTES = 16 << 10
_PROC_FILE_BYTES = 1 << 10
"""Bytes of a `ProcFile` that are read; the files that stay open are shorter."""


def read_holding_gil(path: str) -> bytes:
    """Return the whole file. Files that the kernel is slow to produce, such as smaps, would block the training."""
    if _LIBC is None:
        return read_releasing_gil(path)
    fd = _LIBC.open(os.fsencode(path), os.O_RDONLY | os.O_CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    try:
        parts, buffer = [], ctypes.create_string_buffer(_READ_BYTES)
        while (count := _LIBC.read(fd, buffer, _READ_BYTES)) > 0:
            parts.append(buffer.raw[:count])
        if count < 0:  # the process has ended
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
        return b"".join(parts)
    finally:
        _LIBC.close(fd)


def read_releasing_gil(path: str) -> bytes:
    """Return the whole file, by ordinary system calls."""
    fd = os.open(path, os.O_RDONLY)
    try:
        parts = []
        while part := os.read(fd, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)


class ProcFile:
    """A small file in /proc that is kept open, so that a read takes a microsecond.

    It is empty if the system has no such file.
    """

    def __init__(self, path: str) -> None:
        self._fd: int | None = None
        self._buffer = ctypes.create_string_buffer(_PROC_FILE_BYTES)
        with suppress(OSError):
            self._fd = os.open(path, os.O_RDONLY)

    def read(self) -> bytes:
        """Return its current text."""
        if self._fd is None:
            return b""
        if _LIBC is None:
            return os.pread(self._fd, _PROC_FILE_BYTES, 0)
        count = _LIBC.pread(self._fd, self._buffer, ctypes.c_size_t(_PROC_FILE_BYTES), ctypes.c_long(0))
        if count < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return self._buffer.raw[:count]

    def __del__(self) -> None:
        if self._fd is not None:
            os.close(self._fd)

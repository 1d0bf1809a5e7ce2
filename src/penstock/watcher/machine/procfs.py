"""Small files of /proc, read without giving up the interpreter's lock.

Python gives it up around every system call, and a thread that wants it back has to take it from the training: that
costs the training many times what a read from /proc takes, which is some microseconds of the kernel's own memory.
Standard library only: it also runs in torch's worker processes.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress

_LIBC = ctypes.PyDLL(None, use_errno=True) if sys.platform == "linux" else None
_READ_BYTES = 16 << 10


def read_quickly(path: str) -> bytes:
    """All of it. Not for files that take the kernel long, such as smaps: the training would stand still meanwhile."""
    if _LIBC is None:
        return read_all(path)
    fd = _LIBC.open(os.fsencode(path), os.O_RDONLY | os.O_CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    try:
        parts, buffer = [], ctypes.create_string_buffer(_READ_BYTES)
        while (count := _LIBC.read(fd, buffer, _READ_BYTES)) > 0:
            parts.append(buffer.raw[:count])
        if count < 0:  # a process that has gone
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
        return b"".join(parts)
    finally:
        _LIBC.close(fd)


def read_all(path: str) -> bytes:
    """The same in the ordinary way."""
    fd = os.open(path, os.O_RDONLY)
    try:
        parts = []
        while part := os.read(fd, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)


class ProcFile:
    """A small file under /proc, kept open: its text as of now costs a microsecond. Empty where the system has none."""

    def __init__(self, path: str) -> None:
        self._fd: int | None = None
        self._buffer = ctypes.create_string_buffer(1024)
        with suppress(OSError):
            self._fd = os.open(path, os.O_RDONLY)

    def read(self) -> bytes:
        """From its start."""
        if self._fd is None:
            return b""
        if _LIBC is None:
            return os.pread(self._fd, 1024, 0)
        count = _LIBC.pread(self._fd, self._buffer, ctypes.c_size_t(1024), ctypes.c_long(0))
        if count < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return self._buffer.raw[:count]

    def __del__(self) -> None:
        if self._fd is not None:
            os.close(self._fd)

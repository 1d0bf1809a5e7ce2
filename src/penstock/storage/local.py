"""A local file read at any offset, by any thread, without a shared position."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from functools import partial
from typing import Self

from penstock.errors import StorageError

# A named pipe must not make us wait for its writer; on files O_NONBLOCK means nothing.
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)


class LocalFile:
    """An open file: its size and mtime as they were when it was opened, and `read_at`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = str(path)
        try:
            self.fd = os.open(path, _OPEN_FLAGS)
        except OSError as error:
            raise StorageError(f"cannot open: {error.strerror}", shard=self.path, stage="open") from error
        facts = os.fstat(self.fd)
        self.size = facts.st_size
        self.mtime_ns = facts.st_mtime_ns
        if not stat.S_ISREG(facts.st_mode):
            self.close()
            what = "a directory" if stat.S_ISDIR(facts.st_mode) else "a device or a pipe"
            raise StorageError(f"is {what}, not a regular file", shard=self.path, stage="open")

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""
        try:
            data = pread(self.fd, length, offset)
            while len(data) < length:  # a signal or a network file system may cut a read short
                more = pread(self.fd, length - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise StorageError(
                f"cannot read {length} bytes: {error.strerror}", shard=self.path, offset=offset, stage="read"
            ) from error
        return data

    def filler(self) -> Callable[[list[memoryview], int], int]:
        """Reads at an offset into memory, with nothing around the system call, which may raise or fall short."""
        return partial(os.preadv, self.fd) if hasattr(os, "preadv") else copying_filler(self.read_at)

    def close(self) -> None:
        """Give the descriptor back; a second call does nothing."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LocalFile({self.path!r}, size={self.size})"


def copying_filler(read_at: Callable[[int, int], bytes]) -> Callable[[list[memoryview], int], int]:
    """What `filler` gives where memory cannot be read into directly."""

    def fill(into: list[memoryview], offset: int) -> int:
        data = read_at(offset, len(into[0]))
        into[0][: len(data)] = data
        return len(data)

    return fill


if hasattr(os, "pread"):
    pread = os.pread
else:  # Windows: seek and read must not be torn apart by another thread
    _seek_lock = threading.Lock()

    def pread(fd: int, length: int, offset: int, /) -> bytes:
        """What os.pread does elsewhere."""
        with _seek_lock:
            os.lseek(fd, offset, os.SEEK_SET)
            return os.read(fd, length)

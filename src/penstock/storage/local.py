"""Local files that any thread can read at any offset, without a shared position.

`LocalFile` opens a file anew when a file server has forgotten it. `ForwardStream` makes a stream of any file that can
be read at an offset, local or remote.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self, TypeVar

from penstock.errors import StorageError

Wanted = TypeVar("Wanted")
Result = TypeVar("Result")

# O_NONBLOCK keeps the opening of a named pipe from waiting for its writer; it has no effect on regular files.
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)

STREAM_BYTES = 256 << 10
"""Bytes that a stream reads at once."""
MAX_REOPENS = 3
"""How often a read is repeated when the server of a network file system has forgotten the file (ESTALE)."""
_ADVICE = {
    errno.ESTALE: "The file server no longer knows this file: it was replaced, or the server was set up anew",
    errno.EIO: "The disk failed, or the file server does not answer",
    errno.ETIMEDOUT: "The file server does not answer",
    errno.ENOTCONN: "The file server is not connected",
    errno.EHOSTDOWN: "The file server is down",
}


def read_into_buffers(read: Callable[[list[memoryview], int], int], buffers: Sequence[memoryview], offset: int) -> int:
    """Fill the buffers one after the other from `offset` on, until a read returns nothing; return the bytes read.

    The read is repeated for the rest, since a signal or a network file system may cut it short.
    """
    remaining, position = [buffer for buffer in buffers if len(buffer)], offset
    while remaining:
        count = read(remaining, position)
        if count == 0:
            break
        position += count
        while remaining and count >= len(remaining[0]):
            count -= len(remaining.pop(0))
        if count:
            remaining[0] = remaining[0][count:]
    return position - offset


class LocalFile:
    """An open file, with its size and modification time as they were when it was opened."""

    etag: str | None = None
    """None for every local file; objects in a store have an ETag."""

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
        """Return up to `length` bytes; fewer only at the end of the file."""
        data = self.retry_when_stale(pread, length, offset)
        while len(data) < length:  # a signal or a network file system may cut a read short
            more = self.retry_when_stale(pread, length - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def retry_when_stale(self, read: Callable[[int, Wanted, int], Result], wanted: Wanted, offset: int) -> Result:
        """Return `read(fd, wanted, offset)`; if a file server has forgotten the file, open it anew and repeat."""
        reopened = 0
        while True:
            try:
                return read(self.fd, wanted, offset)
            except OSError as error:
                if error.errno != errno.ESTALE or reopened == MAX_REOPENS:
                    raise StorageError(
                        f"cannot read: {error.strerror}",
                        shard=self.path,
                        offset=offset,
                        stage="read",
                        advice=_ADVICE.get(error.errno or 0),
                    ) from error
            reopened += 1
            self._reopen()

    def read_into_buffers(self, buffers: Sequence[memoryview], offset: int) -> int:
        """Fill the buffers from `offset` on; return the bytes read, fewer than requested only at the file's end."""
        return read_into_buffers(partial(self.retry_when_stale, os.preadv), buffers, offset)

    def _reopen(self) -> None:
        """Open the file anew under the same descriptor, which other threads may be reading; refuse another file."""
        with LocalFile(self.path) as fresh:
            if (fresh.size, fresh.mtime_ns) != (self.size, self.mtime_ns):
                raise StorageError("has changed since it was opened", shard=self.path, stage="read")
            os.dup2(fresh.fd, self.fd, inheritable=False)

    def stream(self) -> io.BufferedReader:
        """Return a stream over the whole file."""
        return io.BufferedReader(ForwardStream(self._read_into), STREAM_BYTES)

    def _read_into(self, offset: int, into: memoryview) -> int:
        data = self.read_at(offset, len(into))
        into[: len(data)] = data
        return len(data)

    def raw_reader(self) -> Callable[[list[memoryview], int], int]:
        """Return a function that reads at an offset into memory and returns the bytes read.

        It is the bare system call, for speed: it may raise OSError or read fewer bytes than requested.
        """
        return partial(os.preadv, self.fd) if hasattr(os, "preadv") else copying_reader(self.read_at)

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LocalFile({self.path!r}, size={self.size})"


def copying_reader(read_at: Callable[[int, int], bytes]) -> Callable[[list[memoryview], int], int]:
    """Return a `raw_reader` for files that cannot be read into memory directly."""

    def read(into: list[memoryview], offset: int) -> int:
        data = read_at(offset, len(into[0]))
        into[0][: len(data)] = data
        return len(data)

    return read


if hasattr(os, "pread"):
    pread = os.pread
else:  # Windows has no pread: a lock keeps seek and read of one thread together
    _seek_lock = threading.Lock()

    def pread(fd: int, length: int, offset: int, /) -> bytes:
        """Do what os.pread does on other platforms."""
        with _seek_lock:
            os.lseek(fd, offset, os.SEEK_SET)
            return os.read(fd, length)


class ForwardStream(io.RawIOBase):
    """A stream over a file, from its start, for decompressors and tar walks.

    It recovers from whatever `read_into` recovers from: a server that forgets the file, a store that stalls.
    """

    def __init__(self, read_into: Callable[[int, memoryview], int]) -> None:
        """Take a function that fills memory from an offset on and returns the bytes read, 0 at the end."""
        super().__init__()
        self._read_into = read_into
        self._position = 0

    def readable(self) -> bool:
        """Return True: the stream can be read, and neither written nor sought in."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into the buffer; return their number."""
        with memoryview(buffer).cast("B") as into:
            count = self._read_into(self._position, into)
        self._position += count
        return count

    def tell(self) -> int:  # glossary: allow
        """Return the number of bytes read so far."""
        return self._position

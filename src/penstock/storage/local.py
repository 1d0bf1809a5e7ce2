"""A local file read at any offset, by any thread, without a shared position."""

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

# A named pipe must not make us wait for its writer; on files O_NONBLOCK means nothing.
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)

STREAM_BYTES = 256 << 10
"""Of a stream, read at once."""
MAX_REOPENS = 3
"""How often a read begins anew when the server of a network file system has forgotten the file."""
_ADVICE = {
    errno.ESTALE: "The file server no longer knows this file: it was replaced, or the server was set up anew",
    errno.EIO: "The disk failed, or the file server does not answer",
    errno.ETIMEDOUT: "The file server does not answer",
    errno.ENOTCONN: "The file server is not connected",
    errno.EHOSTDOWN: "The file server is down",
}


def read_into_buffers(read: Callable[[list[memoryview], int], int], buffers: Sequence[memoryview], offset: int) -> int:
    """Read on from there into these, one after the other, until a read gives nothing; how many bytes came.

    A signal or a network file system may cut a read short.
    """
    rest, at = [buffer for buffer in buffers if len(buffer)], offset
    while rest:
        count = read(rest, at)
        if count == 0:
            break
        at += count
        while rest and count >= len(rest[0]):
            count -= len(rest.pop(0))
        if count:
            rest[0] = rest[0][count:]
    return at - offset


class LocalFile:
    """An open file: its size and mtime as they were when it was opened, and `read_at`."""

    etag: str | None = None
    """Objects in a store have one."""

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
        data = self.retry_when_stale(pread, length, offset)
        while len(data) < length:  # a signal or a network file system may cut a read short
            more = self.retry_when_stale(pread, length - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def retry_when_stale(self, read: Callable[[int, Wanted, int], Result], wanted: Wanted, offset: int) -> Result:
        """What `read(fd, wanted, offset)` gives; where a file server has forgotten the file, it is opened anew."""
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
        """Read on from there into these, one after the other; how many bytes came: fewer at its end only."""
        return read_into_buffers(partial(self.retry_when_stale, os.preadv), buffers, offset)

    def _reopen(self) -> None:
        """The same file under the same descriptor, whoever reads from it just now; another one is refused."""
        with LocalFile(self.path) as fresh:
            if (fresh.size, fresh.mtime_ns) != (self.size, self.mtime_ns):
                raise StorageError("has changed since it was opened", shard=self.path, stage="read")
            os.dup2(fresh.fd, self.fd, inheritable=False)

    def stream(self) -> io.BufferedReader:
        """All of it, from the start."""
        return io.BufferedReader(ForwardStream(self._read_into), STREAM_BYTES)

    def _read_into(self, offset: int, into: memoryview) -> int:
        data = self.read_at(offset, len(into))
        into[: len(data)] = data
        return len(data)

    def raw_reader(self) -> Callable[[list[memoryview], int], int]:
        """Reads at an offset into memory, with nothing around the system call, which may raise or fall short."""
        return partial(os.preadv, self.fd) if hasattr(os, "preadv") else copying_reader(self.read_at)

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


def copying_reader(read_at: Callable[[int, int], bytes]) -> Callable[[list[memoryview], int], int]:
    """What `raw_reader` gives where memory cannot be read into directly."""

    def read_into_buffers(into: list[memoryview], offset: int) -> int:
        data = read_at(offset, len(into[0]))
        into[0][: len(data)] = data
        return len(data)

    return read_into_buffers


if hasattr(os, "pread"):
    pread = os.pread
else:  # Windows: seek and read must not be torn apart by another thread
    _seek_lock = threading.Lock()

    def pread(fd: int, length: int, offset: int, /) -> bytes:
        """What os.pread does elsewhere."""
        with _seek_lock:
            os.lseek(fd, offset, os.SEEK_SET)
            return os.read(fd, length)


class ForwardStream(io.RawIOBase):
    """From the start; what the reading bears (a server that forgets, a store that stalls) is borne here too."""

    def __init__(self, read_into: Callable[[int, memoryview], int]) -> None:
        """`read_into` fills memory from an offset on, and says how much of it; 0 at the end."""
        super().__init__()
        self._read_into = read_into
        self._position = 0

    def readable(self) -> bool:
        """Yes, and nothing else."""
        return True

    def readinto(self, buffer: Any) -> int:
        """What comes next."""
        with memoryview(buffer).cast("B") as into:
            count = self._read_into(self._position, into)
        self._position += count
        return count

    def tell(self) -> int:  # glossary: allow
        """Bytes read so far."""
        return self._position

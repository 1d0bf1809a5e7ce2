"""Copy one shard into the cache: write it, sync it to the disk, read it back and compare the checksums."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from io import BufferedReader, FileIO
from pathlib import Path

import deflate

from penstock.errors import StorageError
from penstock.storage.object_store.remote_file import RemoteFile
from penstock.storage.object_store.request import ObjectVersion
from penstock.storage.object_store.url import is_remote
from penstock.storage.page_cache import drop_pages

_COPY_BYTES = 8 << 20
_SUFFIX = re.compile(r"(\.[A-Za-z0-9]{1,8}){1,2}$")


class CacheFallback(StrEnum):
    """The reasons why a shard is read from where it lies instead of from the cache."""

    TOO_LARGE = "the shard is larger than the cache's budget"
    BUSY = "another job is staging the shard"
    NO_SPACE = "unfinished copies take up the budget"
    FULL = "the cache's disk is full"
    READ_ONLY = "the cache's directory cannot be written"
    LOCKED = "the cache's lock was not free in time"
    CHANGED = "the shard changed while it was copied"
    DAMAGED = "the copy does not match the shard"
    UNREADABLE = "the shard could not be read"
    BROKEN = "the cache's directory does not work"
    STOPPED = "the copy was cancelled"

    @classmethod
    def of(cls, error: OSError) -> CacheFallback:
        """Return the reason for an error of the cache's directory."""
        if isinstance(error, TimeoutError):
            return cls.LOCKED
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return cls.FULL
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            return cls.READ_ONLY
        return cls.BROKEN


@dataclass(frozen=True, slots=True)
class ShardVersion:
    """A shard in its current version. After a change it is another version and gets another entry in the cache."""

    path: str
    """Resolved path of a file, or a URL."""
    size_bytes: int
    mtime_ns: int
    etag: str | None = None
    """ETag of an object in a store."""

    @classmethod
    def of(cls, path: str | Path) -> ShardVersion:
        """Return the current version of a shard."""
        if is_remote(path):
            file = RemoteFile(os.fspath(path))
            return cls(file.path, file.size, file.mtime_ns, file.etag)
        real = os.path.realpath(path)
        try:
            status = Path(real).stat()
        except OSError as error:
            raise StorageError(f"cannot inspect the shard: {error}", shard=str(path), stage="cache") from error
        return cls(real, status.st_size, status.st_mtime_ns)

    @property
    def digest(self) -> str:
        """Return the hash that names its entry."""
        identity = f"{self.path}\0{self.size_bytes}\0{self.mtime_ns}" + (f"\0{self.etag}" if self.etag else "")
        return hashlib.sha256(os.fsencode(identity)).hexdigest()[:32]

    @property
    def suffix(self) -> str:
        """Return the file name's suffix, such as `.tar.zst`, from which readers infer the compression."""
        match = _SUFFIX.search(self.path)
        return match[0] if match else ""

    def stream(self) -> FileIO | BufferedReader:
        """Open a stream over its bytes; for an object, over those of this version only."""
        if is_remote(self.path):
            return RemoteFile(self.path, ObjectVersion(self.size_bytes, self.etag, self.mtime_ns)).stream()
        return open(self.path, "rb", buffering=0)


def copy_verified(source: ShardVersion, part: Path, stopped: Callable[[], bool] | None = None) -> CacheFallback | None:
    """Copy to `part` and compare what the disk returns with what was read; return None on success.

    Errors of the cache's disk are raised as OSError. `stopped` is called before each read and cancels the copy.
    """
    with contextlib.ExitStack() as stack:
        try:
            stream = source.stream()
        except OSError:
            return CacheFallback.UNREADABLE
        stack.callback(stream.close)
        reading = stream if stopped is None else _CancellableStream(stream, stopped)
        target = stack.enter_context(open(part, "r+b", buffering=0))
        _reserve_space(target.fileno(), source.size_bytes)
        crc = _copy(reading, target)
        if crc is None:
            return CacheFallback.STOPPED if stopped is not None and stopped() else CacheFallback.UNREADABLE
        if not _unchanged(source, stream):
            return CacheFallback.CHANGED
        os.fsync(target.fileno())
    drop_pages(part)
    return None if file_crc32(part, source.size_bytes) == crc else CacheFallback.DAMAGED


class _CancellableStream:
    """A stream that raises InterruptedError once the copy is cancelled."""

    def __init__(self, stream: FileIO | BufferedReader, stopped: Callable[[], bool]) -> None:
        self._stream = stream
        self._stopped = stopped

    def readinto(self, buffer: bytearray) -> int | None:
        """Read into the buffer, as the stream does."""
        if self._stopped():
            raise InterruptedError
        return self._stream.readinto(buffer)


def _unchanged(source: ShardVersion, stream: FileIO | BufferedReader) -> bool:
    """Return whether the file has not changed; for an object, the store has checked every request."""
    if is_remote(source.path):
        return True
    status = os.fstat(stream.fileno())
    return (status.st_size, status.st_mtime_ns) == (source.size_bytes, source.mtime_ns)


def file_crc32(path: Path, size_bytes: int) -> int | None:
    """Return the CRC32 of a file; None if it does not have that size."""
    crc, total, buffer = 0, 0, bytearray(_COPY_BYTES)
    with open(path, "rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            crc = deflate.crc32(memoryview(buffer)[:count], crc)
            total += count
    return crc if total == size_bytes else None


def _copy(stream: FileIO | BufferedReader | _CancellableStream, target: FileIO) -> int | None:
    """Copy all bytes and return their CRC32; None if the source failed."""
    crc, buffer = 0, bytearray(_COPY_BYTES)
    while True:
        try:
            count = stream.readinto(buffer)
        except OSError:
            return None
        if not count:
            return crc
        rest = memoryview(buffer)[:count]
        crc = deflate.crc32(rest, crc)
        while rest:
            rest = rest[target.write(rest) :]


def _reserve_space(fd: int, size_bytes: int) -> None:
    """Reserve the space at once, so that a full disk is detected before gigabytes are copied."""
    if not size_bytes or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(fd, 0, size_bytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise

"""Open a shard for reading: a plain one at any offset, a compressed one as a stream that goes forward only.

The name decides whether it lies on a disk or in an object store; callers need not distinguish the two.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable
from typing import Literal, Protocol, Self

from penstock.errors import TarError
from penstock.shards.codecs import zstd
from penstock.shards.tar_header import TAR_BLOCK, guess_format
from penstock.storage.local import LocalFile, copying_reader
from penstock.storage.object_store.remote_file import RemoteFile, SequentialReadahead
from penstock.storage.object_store.url import is_remote

Compression = Literal["gz", "zst"]

MAX_EXPANSION = 1100
"""Largest expansion factor. Deflate cannot exceed 1032, and real data stays far below: more is a bomb."""
UNCHECKED_EXPANSION_BYTES = 256 << 20
"""Bytes of output up to which the factor is not checked, since a small tar of zeros is harmless."""
_SKIP_BYTES = 1 << 20
_MAGIC: dict[Compression, tuple[bytes, ...]] = {
    "gz": (b"\x1f\x8b",),
    "zst": (b"\x28\xb5\x2f\xfd", *(bytes((first, 0x2A, 0x4D, 0x18)) for first in range(0x50, 0x60))),
}
"""The first bytes of compressed files. A zstd file may begin with a frame that is skipped."""


def compression_from_name(path: str | os.PathLike[str]) -> Compression | None:
    """Return the compression that the name implies; the tar walk detects a wrong name."""
    name = os.fspath(path).lower()
    if name.endswith((".tar.gz", ".tgz")):
        return "gz"
    if name.endswith((".tar.zst", ".tar.zstd")):
        return "zst"
    return None


class PlainShard(LocalFile):
    """An open plain shard on a disk, read at any offset."""

    compression: Compression | None = None

    @property
    def end(self) -> int:
        """Length of the tar's data."""
        return self.size


class RemoteShard:
    """An open plain shard in an object store, for one reader; sequential reads are served by readahead."""

    compression: Compression | None = None

    def __init__(self, path: str) -> None:
        self.file = RemoteFile(path)
        self.path = self.file.path
        self.size = self.end = self.file.size
        self.mtime_ns = self.file.mtime_ns
        self.etag = self.file.etag
        readahead = SequentialReadahead(self.file)
        self.read_at = readahead.read_at
        self.raw_reader = readahead.raw_reader

    def reread(self, offset: int, length: int) -> bytes:
        """Read from the store again, past the readahead: for bytes that arrived damaged."""
        return self.file.read_at(offset, length)

    def close(self) -> None:
        """Do nothing: no connection is held open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class DecompressedStream(Protocol):
    """The interface that both decompressors have."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; none at the end."""
        ...

    def close(self) -> None:
        """Free the decompressor's memory."""
        ...


class CompressedShard:
    """An open compressed shard. Offsets are those of the uncompressed stream.

    They must not decrease, but the range that was read last may be read again.
    """

    def __init__(self, path: str | os.PathLike[str], compression: Compression) -> None:
        self._file = RemoteFile(os.fspath(path)) if is_remote(path) else LocalFile(path)
        self.path = self._file.path
        self.size = self._file.size
        self.mtime_ns = self._file.mtime_ns
        self.etag = self._file.etag
        self.compression = compression
        self._raw = self._file.stream()
        self._stream: DecompressedStream = (
            gzip.GzipFile(fileobj=self._raw, mode="rb") if compression == "gz" else zstd.ZstdFile(self._raw)
        )
        self._position = 0
        self._last = b""
        """The bytes that were read last: a hard link has the same bytes as the member that it names."""

    @property
    def end(self) -> int:
        """Position up to which the stream has been read; at its end, the length of the tar's data."""
        return self._position

    def read_at(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes; the bytes before `offset` are decompressed and dropped."""
        if offset == self._position - len(self._last) and length == len(self._last):
            return self._last
        if offset < self._position:
            raise ValueError(f"{self.path}: a compressed shard cannot go back from {self._position} to {offset}")
        while self._position < offset:
            self._last = b""
            if not self._decompress(min(offset - self._position, _SKIP_BYTES)):
                return b""
        self._last = self._decompress(length)
        return self._last

    def raw_reader(self) -> Callable[[list[memoryview], int], int]:
        """Return a function that reads into memory; a stream has no faster one than `read_at`."""
        return copying_reader(self.read_at)

    def _decompress(self, length: int) -> bytes:
        try:
            data = self._stream.read(length)
        except (EOFError, zlib.error, gzip.BadGzipFile, zstd.ZstdError) as error:
            head = self._file.read_at(0, TAR_BLOCK)
            if not head.startswith(_MAGIC[self.compression]):
                raise TarError(
                    f"is not compressed as its name says: it starts with {head[:16]!r}{guess_format(head)}",
                    shard=self.path,
                    offset=0,
                    stage="decompress",
                    advice="Copy or download it again, or give it the name that fits.",
                ) from error
            raise TarError(
                f"compressed data is damaged or cut short: {error}",
                shard=self.path,
                offset=self._position,
                stage="decompress",
                advice="Copy the shard again.",
            ) from error
        self._position += len(data)
        if self._expands_too_much():
            raise TarError(
                f"expands more than {MAX_EXPANSION} times: refused as a decompression bomb",
                shard=self.path,
                offset=self._position,
                stage="decompress",
                advice="If you trust it, unpack it to a plain .tar.",
            )
        return data

    def _expands_too_much(self) -> bool:
        position = self._position
        return position > UNCHECKED_EXPANSION_BYTES and position > MAX_EXPANSION * self._raw.tell()  # glossary: allow

    def close(self) -> None:
        """Close the stream and the file; a second call does nothing."""
        self._stream.close()
        self._raw.close()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


AnyShard = PlainShard | RemoteShard | CompressedShard


def open_shard(path: str | os.PathLike[str]) -> AnyShard:
    """Open a shard as its name requires."""
    compression = compression_from_name(path)
    if compression:
        return CompressedShard(path, compression)
    return RemoteShard(os.fspath(path)) if is_remote(path) else PlainShard(path)

"""Opens a shard for reading: plain ones at any offset, compressed ones as a stream that only goes forward.

Where it lies, on a disk or in an object store, is told by its name and matters no further.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable
from typing import Literal, Protocol, Self

from penstock.errors import TarError
from penstock.shards.codecs import zstd
from penstock.storage.local import LocalFile, copying_reader
from penstock.storage.object_store.remote_file import RemoteFile, SequentialReadahead
from penstock.storage.object_store.url import is_remote

Compression = Literal["gz", "zst"]

MAX_EXPANSION = 1100
"""Deflate cannot exceed 1032:1, and real data stays far below: a stream beyond this is a bomb."""
UNCHECKED_EXPANSION_BYTES = 256 << 20
"""Below this much output the ratio is not judged: a small tar of zeros is harmless."""
_SKIP_BYTES = 1 << 20


def compression_from_name(path: str | os.PathLike[str]) -> Compression | None:
    """What the name says; the walk notices when the name lies."""
    name = os.fspath(path).lower()
    if name.endswith((".tar.gz", ".tgz")):
        return "gz"
    if name.endswith((".tar.zst", ".tar.zstd")):
        return "zst"
    return None


class PlainShard(LocalFile):
    """An open plain shard: `size`, `mtime_ns`, `end` and `read_at` at any offset."""

    compression: Compression | None = None

    @property
    def end(self) -> int:
        """Length of the tar's data."""
        return self.size


class RemoteShard:
    """The same in an object store, for one reader: whoever reads on from place to place gets ahead of the requests."""

    compression: Compression | None = None

    def __init__(self, path: str) -> None:
        self.file = RemoteFile(path)
        self.path = self.file.path
        self.size = self.end = self.file.size
        self.mtime_ns = self.file.mtime_ns
        self.etag = self.file.etag
        ahead = SequentialReadahead(self.file)
        self.read_at = ahead.read_at
        self.raw_reader = ahead.raw_reader

    def reread(self, offset: int, length: int) -> bytes:
        """From the store itself, whatever is held: for bytes that came damaged."""
        return self.file.read_at(offset, length)

    def close(self) -> None:
        """Nothing is held open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class DecompressedStream(Protocol):
    """What the decompressors have in common."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes, nothing at the end."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


class CompressedShard:
    """An open compressed shard. Offsets are those of the uncompressed stream and must not go back."""

    def __init__(self, path: str | os.PathLike[str], compression: Compression) -> None:
        self._file = RemoteFile(os.fspath(path)) if is_remote(path) else LocalFile(path)
        self.path = self._file.path
        self.size = self._file.size
        self.mtime_ns = self._file.mtime_ns
        self.etag = self._file.etag
        self.compression: Compression | None = compression
        self._raw = self._file.stream()
        self._stream: DecompressedStream = (
            gzip.GzipFile(fileobj=self._raw, mode="rb") if compression == "gz" else zstd.ZstdFile(self._raw)
        )
        self._position = 0

    @property
    def end(self) -> int:
        """How far the stream has been read: at its end, the length of the tar's data."""
        return self._position

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes; what lies before `offset` is decompressed and dropped."""
        if offset < self._position:
            raise ValueError(f"{self.path}: a compressed shard cannot go back from {self._position} to {offset}")
        while self._position < offset:
            if not self._take(min(offset - self._position, _SKIP_BYTES)):
                return b""
        return self._take(length)

    def raw_reader(self) -> Callable[[list[memoryview], int], int]:
        """There is no quicker way through a stream."""
        return copying_reader(self.read_at)

    def _take(self, length: int) -> bytes:
        try:
            data = self._stream.read(length)
        except (EOFError, zlib.error, gzip.BadGzipFile, zstd.ZstdError) as error:
            raise TarError(
                f"compressed data is damaged or cut short: {error}",
                shard=self.path,
                offset=self._position,
                stage="decompress",
                advice="Copy the shard again.",
            ) from error
        self._position += len(data)
        if self._position > UNCHECKED_EXPANSION_BYTES and self._position > MAX_EXPANSION * self._raw.tell():
            raise TarError(
                f"expands more than {MAX_EXPANSION} times: refused as a decompression bomb",
                shard=self.path,
                offset=self._position,
                stage="decompress",
                advice="If you trust it, unpack it to a plain .tar.",
            )
        return data

    def close(self) -> None:
        """Give the descriptor back; a second call does nothing."""
        self._stream.close()
        self._raw.close()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


AnyShard = PlainShard | RemoteShard | CompressedShard


def open_shard(path: str | os.PathLike[str]) -> AnyShard:
    """The shard, opened as its name says it must be."""
    compression = compression_from_name(path)
    if compression:
        return CompressedShard(path, compression)
    return RemoteShard(os.fspath(path)) if is_remote(path) else PlainShard(path)

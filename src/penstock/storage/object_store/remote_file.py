"""An object read at any offset, by any thread, with the face of a local file."""

from __future__ import annotations

import asyncio
import io
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

from penstock.errors import StorageError
from penstock.storage.local import ForwardStream, copying_reader
from penstock.storage.object_store.client import import_obstore, path_in_store
from penstock.storage.object_store.io_thread import run_on_io_thread
from penstock.storage.object_store.request import ObjectVersion, fetch_range, with_retries
from penstock.storage.object_store.retry import DEFAULT_RETRY_POLICY
from penstock.storage.object_store.url import RemoteUrl, parse_url

REQUEST_BYTES = 4 << 20
"""Longer reads are cut into requests of this size: one connection gives some tens of MB/s, several that much more."""
MAX_IN_FLIGHT = 16
"""Requests that one read has in flight."""
STREAM_BYTES = 16 << 20
"""What a stream fetches ahead."""

FIRST_REQUEST_BYTES = 1 << 20
"""Of an object whose size is not known yet, so much is asked for at first."""

RangeRead = tuple[int, memoryview]
"""An offset in the object, and the memory that is to be filled from there."""


class RemoteFile:
    """One version of an object: its size and ETag as they were when it was looked at. Another version is never read."""

    def __init__(self, path: str, version: ObjectVersion | None = None) -> None:
        self._url = parse_url(path)
        self.path = str(self._url)
        self._version = version or run_on_io_thread(_request_version(self._url))
        self.size = self._version.size
        self.etag = self._version.etag
        self.mtime_ns = self._version.modified_ns

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the object."""
        data = bytearray(max(0, min(length, self.size - offset)))
        self.read_ranges([(offset, memoryview(data))])
        return bytes(data)

    def read_ranges(self, places: Sequence[RangeRead]) -> int:
        """Fill every place, side by side; returns how many bytes that is."""
        if any(len(into) and offset + len(into) > self.size for offset, into in places):
            raise StorageError("ends before its index says", shard=self.path, offset=self.size, stage="read")
        pieces = [piece for place in places for piece in _split_request(*place)]
        if pieces:
            run_on_io_thread(self._fetch(pieces))
        return sum(len(into) for _, into in places)

    def raw_reader(self) -> Callable[[list[memoryview], int], int]:
        """As a local file has it."""
        return copying_reader(self.read_at)

    def stream(self) -> io.BufferedReader:
        """All of it, from the start, some of it fetched ahead."""
        return io.BufferedReader(ForwardStream(self._read_into), STREAM_BYTES)

    def close(self) -> None:
        """Nothing is held open."""

    async def _fetch(self, pieces: Sequence[RangeRead]) -> None:
        """All or none: when this is over, nobody writes to the memory any more."""
        gate = asyncio.Semaphore(MAX_IN_FLIGHT)

        async def one(offset: int, into: memoryview) -> None:
            async with gate:
                await fetch_range(self._url, self._version, offset, into, DEFAULT_RETRY_POLICY)

        tasks = [asyncio.ensure_future(one(*piece)) for piece in pieces]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _read_into(self, offset: int, into: memoryview) -> int:
        count = min(len(into), self.size - offset)
        with into[:count] as wanted:
            self.read_ranges([(offset, wanted)])
        return count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, size={self.size})"


def read_object(path: str, most_bytes: int) -> bytes:
    """All of an object that is probably small: then it takes one request."""
    url = parse_url(path)
    version, data = run_on_io_thread(_read_beginning(url))
    if version.size > most_bytes:
        raise StorageError(f"has {version.size} bytes, more than {most_bytes}", shard=str(url), stage="read")
    return data + RemoteFile(path, version).read_at(len(data), version.size - len(data))


def write_object(path: str, data: bytes) -> None:
    """Put an object there, whole or not at all: each 4 MiB of it have the time of a stall."""
    url = parse_url(path)
    if url.is_web:
        raise StorageError("nothing can be written to a web server", shard=str(url), stage="write")
    patience = replace(
        DEFAULT_RETRY_POLICY, stall_s=DEFAULT_RETRY_POLICY.stall_s * max(1, -(-len(data) // REQUEST_BYTES))
    )
    run_on_io_thread(
        with_retries(url, patience, lambda store: import_obstore().put_async(store, url.object_path, data))
    )


async def _request_version(url: RemoteUrl) -> ObjectVersion:
    """Size and ETag as they are now. A signed address may be read but not asked about, so of the web a byte is read."""

    async def ask(store: Any) -> ObjectVersion:
        if not url.is_web:
            return ObjectVersion.of(await import_obstore().head_async(store, url.object_path))
        result = await import_obstore().get_async(store, path_in_store(url), options={"range": (0, 1)})
        return ObjectVersion.of(result.meta)

    return await with_retries(url, DEFAULT_RETRY_POLICY, ask)


async def _read_beginning(url: RemoteUrl) -> tuple[ObjectVersion, bytes]:
    async def ask(store: Any) -> tuple[ObjectVersion, bytes]:
        result = await import_obstore().get_async(
            store, path_in_store(url), options={"range": (0, FIRST_REQUEST_BYTES)}
        )
        version = ObjectVersion.of(result.meta)
        return version, bytes(await result.bytes_async())

    return await with_retries(url, DEFAULT_RETRY_POLICY, ask)


def _split_request(offset: int, into: memoryview) -> list[RangeRead]:
    return [(offset + at, into[at : at + REQUEST_BYTES]) for at in range(0, len(into), REQUEST_BYTES)]


SHORT_MEMBER_BYTES = 64 << 10
"""Members shorter than this, on the average, are read through."""
WINDOW_BYTES = 1 << 20
HOP_BYTES = 4 << 10
"""What a hop brings: a header, and with it an extended one and what that speaks of."""
INITIAL_BYTES = 64 << 10
"""To begin with: enough to see of what length the members are."""
REMEMBERED_HOPS = 8
MAX_GAP_BYTES = 64 << 10
"""A gap over which a reader still goes forward: padding, headers, a part that is not wanted."""


class _ReadaheadFile(ABC):
    """A file as one reader sees it. Not for several threads."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self._start = 0
        self._bytes = b""

    @property
    def end(self) -> int:
        """Length of the file."""
        return self._file.size

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""
        if offset >= self.end:
            return b""
        held_to = self._start + len(self._bytes)
        if offset < self._start or min(offset + length, self.end) > held_to:
            more = max(length, self._guess(offset, held_to))
            self._start, self._bytes = offset, self._file.read_at(offset, more)
        at = offset - self._start
        return self._bytes[at : at + length]

    @abstractmethod
    def _guess(self, offset: int, held_to: int) -> int:
        """How many bytes to fetch at a place that is not held."""

    def raw_reader(self) -> Callable[[list[memoryview], int], int]:
        """As a file has it."""
        return copying_reader(self.read_at)


class HeaderReadahead(_ReadaheadFile):
    """For a walk over the headers of a tar."""

    def __init__(self, file: RemoteFile) -> None:
        super().__init__(file)
        self._last = 0
        self._hops: deque[int] = deque(maxlen=REMEMBERED_HOPS)

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""
        if offset > self._last:
            self._hops.append(offset - self._last)
            self._last = offset
        return super().read_at(offset, length)

    def _guess(self, offset: int, held_to: int) -> int:
        if not self._hops:
            return INITIAL_BYTES
        return WINDOW_BYTES if sum(self._hops) < SHORT_MEMBER_BYTES * len(self._hops) else HOP_BYTES


class SequentialReadahead(_ReadaheadFile):
    """For a reader who mostly goes on where the last read ended."""

    def __init__(self, file: RemoteFile) -> None:
        super().__init__(file)
        self._reach = 0

    def _guess(self, offset: int, held_to: int) -> int:
        near = self._start <= offset <= held_to + MAX_GAP_BYTES and held_to > 0
        self._reach = min(STREAM_BYTES, max(INITIAL_BYTES, 2 * self._reach)) if near else 0
        return self._reach

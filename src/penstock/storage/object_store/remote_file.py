"""Objects as files: `RemoteFile` reads one version of an object at any offset, with the interface of a local file.

`HeaderReadahead` and `SequentialReadahead` serve one reader that reads a little at a time; they fetch and hold more
than was requested, so that it takes few requests:

- Headers of a tar. A hop from header to header costs one request: L seconds, however few bytes it brings. T concurrent
  walks share that: L / T each. Reading on instead costs the member's length divided by the bandwidth B. So members
  shorter than L · B / T (30 ms · 100 MB/s / 32, nearly 100 KB) are read through, in windows, and longer ones are hopped
  over.
- Sequential reads. A reader that continues where its last read ended will probably go on: each time twice as much is
  fetched.
"""

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
"""Largest request. One connection gives some tens of MB/s, so a longer read is split over several."""
MAX_IN_FLIGHT = 16
"""Concurrent requests of one read."""
STREAM_BYTES = 16 << 20
"""Bytes that a stream fetches ahead."""
FIRST_REQUEST_BYTES = 1 << 20
"""Size of the first request for an object whose size is not known yet."""

RangeRead = tuple[int, memoryview]
"""An offset in the object, and the memory to fill with the bytes from there on."""


class RemoteFile:
    """One version of an object, fixed when this is created. Bytes of another version are never returned."""

    def __init__(self, path: str, version: ObjectVersion | None = None) -> None:
        self._url = parse_url(path)
        self.path = str(self._url)
        self._version = version or run_on_io_thread(_request_version(self._url))
        self.size = self._version.size
        self.etag = self._version.etag
        self.mtime_ns = self._version.modified_ns

    def read_at(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes; fewer only at the end of the object."""
        data = bytearray(max(0, min(length, self.size - offset)))
        self.read_ranges([(offset, memoryview(data))])
        return bytes(data)

    def read_ranges(self, reads: Sequence[RangeRead]) -> int:
        """Read all ranges concurrently; return their total number of bytes."""
        if any(len(into) and offset + len(into) > self.size for offset, into in reads):
            raise StorageError("ends before its index says", shard=self.path, offset=self.size, stage="read")
        requests = [request for read in reads for request in _split_request(*read)]
        if requests:
            run_on_io_thread(self._fetch(requests))
        return sum(len(into) for _, into in reads)

    def raw_reader(self) -> Callable[[list[memoryview], int], int]:
        """Return a function that reads at an offset into memory, as `LocalFile.raw_reader` does."""
        return copying_reader(self.read_at)

    def stream(self) -> io.BufferedReader:
        """Return a stream over the whole object that fetches some of it ahead."""
        return io.BufferedReader(ForwardStream(self._read_into), STREAM_BYTES)

    def close(self) -> None:
        """Do nothing: no connection is held open."""

    async def _fetch(self, requests: Sequence[RangeRead]) -> None:
        """Fetch all ranges or none; after this returns or raises, nothing writes to the memory any more."""
        limit = asyncio.Semaphore(MAX_IN_FLIGHT)

        async def fetch(offset: int, into: memoryview) -> None:
            async with limit:
                await fetch_range(self._url, self._version, offset, into, DEFAULT_RETRY_POLICY)

        tasks = [asyncio.ensure_future(fetch(*request)) for request in requests]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _read_into(self, offset: int, into: memoryview) -> int:
        count = min(len(into), self.size - offset)
        with into[:count] as target:
            self.read_ranges([(offset, target)])
        return count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, size={self.size})"


def read_object(path: str, max_bytes: int) -> bytes:
    """Return a whole object that is probably small enough for one request."""
    url = parse_url(path)
    version, data = run_on_io_thread(_read_beginning(url))
    if version.size > max_bytes:
        raise StorageError(f"has {version.size} bytes, more than {max_bytes}", shard=str(url), stage="read")
    return data + RemoteFile(path, version).read_at(len(data), version.size - len(data))


def write_object(path: str, data: bytes) -> None:
    """Write an object, whole or not at all. Each 4 MiB of it get the time limit of one chunk."""
    url = parse_url(path)
    if url.is_web:
        raise StorageError("nothing can be written to a web server", shard=str(url), stage="write")
    stall_s = DEFAULT_RETRY_POLICY.stall_s * max(1, -(-len(data) // REQUEST_BYTES))
    policy = replace(DEFAULT_RETRY_POLICY, stall_s=stall_s)
    run_on_io_thread(with_retries(url, policy, lambda store: import_obstore().put_async(store, url.object_path, data)))


async def _request_version(url: RemoteUrl) -> ObjectVersion:
    """Request the current version of an object.

    A signed address may allow GET but not HEAD, so one byte of a web address is read instead.
    """

    async def send(store: Any) -> ObjectVersion:
        if not url.is_web:
            return ObjectVersion.of(await import_obstore().head_async(store, url.object_path))
        result = await import_obstore().get_async(store, path_in_store(url), options={"range": (0, 1)})
        return ObjectVersion.of(result.meta)

    return await with_retries(url, DEFAULT_RETRY_POLICY, send)


async def _read_beginning(url: RemoteUrl) -> tuple[ObjectVersion, bytes]:
    async def send(store: Any) -> tuple[ObjectVersion, bytes]:
        options = {"range": (0, FIRST_REQUEST_BYTES)}
        result = await import_obstore().get_async(store, path_in_store(url), options=options)
        version = ObjectVersion.of(result.meta)
        return version, bytes(await result.bytes_async())

    return await with_retries(url, DEFAULT_RETRY_POLICY, send)


def _split_request(offset: int, into: memoryview) -> list[RangeRead]:
    return [(offset + start, into[start : start + REQUEST_BYTES]) for start in range(0, len(into), REQUEST_BYTES)]


SHORT_MEMBER_BYTES = 64 << 10
"""Members of a tar that are shorter than this, on average, are read through instead of hopped over."""
WINDOW_BYTES = 1 << 20
"""Size of a request where members are read through."""
HOP_BYTES = 4 << 10
"""Size of a request where members are hopped over: a header, with an extended header and the one it describes."""
INITIAL_BYTES = 64 << 10
"""Size of the first request: enough to see how long the members are."""
REMEMBERED_HOPS = 8
"""Hops of which the average length is taken."""
MAX_GAP_BYTES = 64 << 10
"""Largest gap between two reads that still count as sequential: padding, headers, a part that is not read."""


class _ReadaheadFile(ABC):
    """A file as one reader sees it, with the bytes fetched last held in memory. Not thread-safe."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self._start = 0
        """Offset in the file of the bytes that are held."""
        self._bytes = b""

    @property
    def end(self) -> int:
        """Length of the file in bytes."""
        return self._file.size

    def read_at(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes; fewer only at the end of the file."""
        if offset >= self.end:
            return b""
        held_end = self._start + len(self._bytes)
        if offset < self._start or min(offset + length, self.end) > held_end:
            fetched = max(length, self._fetch_length(offset, held_end))
            self._start, self._bytes = offset, self._file.read_at(offset, fetched)
        start = offset - self._start
        return self._bytes[start : start + length]

    @abstractmethod
    def _fetch_length(self, offset: int, held_end: int) -> int:
        """Return how many bytes to fetch at an offset that is not held."""

    def raw_reader(self) -> Callable[[list[memoryview], int], int]:
        """Return a function that reads at an offset into memory, as `LocalFile.raw_reader` does."""
        return copying_reader(self.read_at)


class HeaderReadahead(_ReadaheadFile):
    """Readahead for a walk over the headers of a tar."""

    def __init__(self, file: RemoteFile) -> None:
        super().__init__(file)
        self._last_offset = 0
        self._hops: deque[int] = deque(maxlen=REMEMBERED_HOPS)
        """Bytes from one header to the next."""

    def read_at(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes; fewer only at the end of the file."""
        if offset > self._last_offset:
            self._hops.append(offset - self._last_offset)
            self._last_offset = offset
        return super().read_at(offset, length)

    def _fetch_length(self, offset: int, held_end: int) -> int:
        if not self._hops:
            return INITIAL_BYTES
        return WINDOW_BYTES if sum(self._hops) < SHORT_MEMBER_BYTES * len(self._hops) else HOP_BYTES


class SequentialReadahead(_ReadaheadFile):
    """Readahead for a reader that mostly continues where its last read ended."""

    def __init__(self, file: RemoteFile) -> None:
        super().__init__(file)
        self._window_bytes = 0

    def _fetch_length(self, offset: int, held_end: int) -> int:
        sequential = self._start <= offset <= held_end + MAX_GAP_BYTES and held_end > 0
        self._window_bytes = min(STREAM_BYTES, max(INITIAL_BYTES, 2 * self._window_bytes)) if sequential else 0
        return self._window_bytes

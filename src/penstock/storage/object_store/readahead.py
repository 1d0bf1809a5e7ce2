"""An object read a little at a time, in as few requests as pay: more is fetched than was asked for, and held.

Headers. A hop from header to header costs one request: L seconds, however few bytes it brings. T walks side by side
share that: L / T each. Reading on instead costs the member's length over the bandwidth B. So members shorter than
L · B / T (30 ms · 100 MB/s / 32, nearly 100 KB) are read through, in windows; over longer ones we hop.

Forward. Whoever has read on from where the last read ended will go on: each time twice as much is fetched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

from penstock.storage.local import copying_reader
from penstock.storage.object_store.remote_file import STREAM_BYTES, RemoteFile

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

    def filler(self) -> Callable[[list[memoryview], int], int]:
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

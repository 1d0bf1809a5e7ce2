"""A file of ours as one that is read on and on: for decompressors and tar walks."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any


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

    def tell(self) -> int:
        """Bytes read so far."""
        return self._position

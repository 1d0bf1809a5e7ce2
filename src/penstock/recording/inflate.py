"""Compressed recordings, read as far as they go."""

from __future__ import annotations

import io
import zlib
from typing import Any

GZIP = b"\x1f\x8b"
"""How such a file begins."""


class Inflated(io.RawIOBase):
    """Gives all there is before the damage; the standard library's reader would throw its last buffer away."""

    def __init__(self, file: io.BufferedReader) -> None:
        self.damaged = False
        self._file = file
        self._inflater = zlib.decompressobj(wbits=31)
        self._left = memoryview(b"")
        self._ended = False

    def readable(self) -> bool:
        """For io.BufferedReader."""
        return True

    def readinto(self, buffer: Any) -> int:
        """What comes next; nothing after the end, nor after damage."""
        while not self._left and not self._ended:
            self._left = memoryview(self._more())
        part = self._left[: len(buffer)]
        buffer[: len(part)] = part
        self._left = self._left[len(part) :]
        return len(part)

    def _more(self) -> bytes:
        """From 4 KiB come 4 MiB at most: no bomb."""
        data = self._inflater.unused_data or self._file.read(4096)
        if not data:
            self._ended, self.damaged = True, not self._inflater.eof
            return b""
        if self._inflater.eof:  # files joined by cat
            self._inflater = zlib.decompressobj(wbits=31)
        try:
            return self._inflater.decompress(data)
        except zlib.error:
            self._ended = self.damaged = True
            return b""

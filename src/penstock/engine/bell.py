"""Wakes the conductor's thread from any other, from finalizers too."""

from __future__ import annotations

import os
from contextlib import suppress


class Bell:
    """A pipe to oneself. Its descriptors live as long as somebody holds the bell, so nobody ever rings a stranger's."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def fileno(self) -> int:
        """Readable after a ring."""
        return self._read

    def ring(self) -> None:
        """Takes no lock and never waits."""
        with suppress(BlockingIOError):  # full: rung often enough
            os.write(self._write, b"x")

    def hush(self) -> None:
        """Forget the rings so far."""
        with suppress(BlockingIOError):
            os.read(self._read, 65536)

    def __del__(self) -> None:
        os.close(self._read)
        os.close(self._write)

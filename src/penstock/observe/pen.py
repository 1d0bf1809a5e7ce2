"""Writes a worker's notes to files of its own in the spool. Standard library only: it runs in worker processes."""

from __future__ import annotations

import json
import os
import threading
from typing import Any

FILE_BYTES = 1 << 20
"""A file that has grown to this is closed and another begun, so that what was read can be removed."""


class Pen:
    """Appends notes, each with one write. The worker's thread and its sampler's share it."""

    def __init__(self, folder: str, name: str) -> None:
        self._stem = os.path.join(folder, name)
        self._part = 0
        self._lock = threading.Lock()
        self._fd = self._open()
        self._written_bytes = 0

    def write(self, note: dict[str, Any]) -> None:
        """One line."""
        text = json.dumps(note, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            if self._written_bytes > FILE_BYTES:
                self._close()
                self._part += 1
                self._fd = self._open()
                self._written_bytes = 0
            self._written_bytes += os.write(self._fd, text)

    def close(self) -> None:
        """Nothing can be written after it."""
        with self._lock:
            self._close()

    def _open(self) -> int:
        return os.open(f"{self._stem}-{self._part}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def _close(self) -> None:
        """The last line lets the reader remove the file."""
        os.write(self._fd, b'{"closed":true}\n')
        os.close(self._fd)
        self._fd = -1

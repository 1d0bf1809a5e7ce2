"""A JSON object per window, for whatever collects a job's output."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from penstock.watcher.sinks.windowed import WindowSink
from penstock.watcher.window import WindowSummary


class Writable(Protocol):
    """A text file, or what looks like one."""

    def write(self, text: str, /) -> Any:
        """Some text."""
        ...

    def flush(self) -> Any:
        """Out with it."""
        ...


class JsonLines(WindowSink):
    """Into a text file that the user opened and will close."""

    def __init__(self, file: Writable, *, window: int | None = None, slow_s: float | None = None) -> None:
        super().__init__(window=window, slow_s=slow_s)
        self._file = file

    def window(self, summary: WindowSummary) -> None:
        """The fields of `WindowSummary`, in one write."""
        self._file.write(msgspec.json.encode(summary).decode() + "\n")
        self._file.flush()

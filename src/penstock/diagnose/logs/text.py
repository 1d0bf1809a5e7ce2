"""From bytes to lines: a gigabyte, a progress bar's carriage returns, colours and stray bytes are all ordinary here."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import BinaryIO

LINE_CHARS_MAX = 16_384
"""The rest of a longer line is not looked at: no format needs it, and a binary file has no line ends."""
_CHUNK_BYTES = 1 << 20
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class Lines:
    """Yields the lines of a file as text, a chunk in memory at a time."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.cut = 0
        """Lines longer than LINE_CHARS_MAX, so far."""

    def __iter__(self) -> Iterator[str]:
        rest = ""
        too_long = False  # the line under way was cut, and what follows belongs to it
        for text in self._decoded():
            *whole, rest = (rest + text).split("\n")
            for line in whole:
                if not too_long:
                    yield from self._clean(line)
                too_long = False
            if len(rest) > LINE_CHARS_MAX:
                if not too_long:
                    yield from self._clean(rest)
                rest, too_long = "", True
        if not too_long:
            yield from self._clean(rest)

    def _decoded(self) -> Iterator[str]:
        chunk = self._file.read(_CHUNK_BYTES)
        encoding = next((name for bom, name in _BOMS if chunk.startswith(bom)), "utf-8")
        decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        while chunk:
            yield decoder.decode(chunk).replace("\r", "\n")
            chunk = self._file.read(_CHUNK_BYTES)
        yield decoder.decode(b"", final=True)

    def _clean(self, line: str) -> Iterator[str]:
        if len(line) > LINE_CHARS_MAX:
            self.cut += 1
            line = line[:LINE_CHARS_MAX]
        if "\x1b" in line:
            line = _ESCAPES.sub("", line)
        if line and not line.isspace():
            yield line

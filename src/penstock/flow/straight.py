"""Large samples whose bytes are in memory already are read by the worker that decodes them.

A block of a few MB then is one sample, and to fetch it costs the training's process more than the kernel's copy: a
request, an answer, the interpreter's lock many times. A worker needs none of that, and raw arrays go straight into
their slot. What has to come from a disk is left to readers, who know how many may read at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import deflate

from penstock.errors import DecodeError, StorageError
from penstock.flow.blocklayout import SPAN
from penstock.flow.openfiles import OpenFiles
from penstock.flow.rows import NO_CRC
from penstock.shards.codecs.scratch import Scratch

_read_into = Scratch()
"""Decoded before the next part comes."""


@dataclass(frozen=True)
class StraightFiles:
    """Where workers read. Threads of one process share what is open; another process opens for itself."""

    open_files: OpenFiles

    def part(self, place: int, length: int, crc32: int) -> memoryview:
        """The bytes of a part, until the next one is asked for."""
        data = _read_into.array((length,)).data
        self.fill(place, [data], crc32)
        return data

    def fill(self, place: int, buffers: Sequence[memoryview], crc32: int) -> None:
        """A part, into these one after the other; they are as long as it. `place` is what a row says."""
        shard, offset = divmod(~place, 1 << SPAN)
        with self.open_files.lend(shard) as file:
            count = file.fill(buffers, offset)
            if count < sum(map(len, buffers)):
                raise StorageError("ends before its index says", shard=file.path, offset=offset + count, stage="read")
        check_crc(buffers, crc32)


def check_crc(pieces: Sequence[memoryview], crc32: int) -> None:
    """That a part is what was written, if whoever wrote it has said what that is."""
    if crc32 == NO_CRC:
        return
    found = 0
    for piece in pieces:
        found = deflate.crc32(piece, found)
    if found != crc32:
        raise DecodeError("CRC32 does not match the index", stage="read", advice="Copy the shard again")

"""Writes one shard: an ordinary tar, the same bytes for the same samples, its CRCs and index as it goes."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable
from typing import IO

import deflate
import numpy as np

from penstock.shards.index import Binding, Opened, ShardIndex, build_index
from penstock.shards.tar import BLOCK, Members

_END = bytes(2 * BLOCK)


class ShardWriter:
    """Appends samples to an open file. Header fields that vary between runs (time, owner) are fixed."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._members = Members()
        self._crcs: list[int] = []
        self.length = 0
        self.samples = 0

    def add(self, key: str, parts: Iterable[tuple[str, bytes]]) -> None:
        """Write one sample, its parts side by side."""
        for suffix, data in parts:
            name = key + suffix
            header = tarfile.TarInfo(name)
            header.size = len(data)
            self._write(header.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
            self._members.names.append(name)
            self._members.offsets.append(self.length)
            self._members.lengths.append(len(data))
            self._crcs.append(deflate.crc32(data))
            self._write(data)
            self._write(bytes(-len(data) % BLOCK))
        self.samples += 1

    def finish(self) -> None:
        """End the archive and see it onto the disk."""
        self._write(_END)
        self._file.flush()
        os.fsync(self._file.fileno())

    def index(self, path: str) -> ShardIndex:
        """The index of what was written, bound to the file as it lies at `path` now."""
        facts = os.stat(path)
        opened = Opened(Binding(facts.st_size, facts.st_mtime_ns), None, self.length)
        return build_index(self._members, opened, crcs=np.array(self._crcs, np.uint32))

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self.length += len(data)

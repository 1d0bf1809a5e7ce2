"""Samples whose bytes are in memory already are read by the worker that decodes them, unless a block has many of them.

Of large samples a block of a few MB is one, and those that a sampler picks lie apart. To fetch one then costs the
training's process more than the kernel's copy: a request, an answer, the interpreter's lock many times. A worker needs
none of that, and raw arrays go straight into their slot. What has to come from a disk is left to readers, who know
how many may read at a time, and what lies together.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import deflate
import numpy as np
from numpy.typing import NDArray

from penstock.data.read.block_layout import NO_CRC, SPAN
from penstock.data.read.open_files import OpenFiles
from penstock.data.read.sample_index import SampleIndex
from penstock.errors import DecodeError, StorageError
from penstock.shards.codecs.images import ScratchBuffer
from penstock.storage.local import LocalFile
from penstock.storage.mounts import identify_storage
from penstock.storage.object_store.url import is_remote
from penstock.storage.page_cache import is_cached

Ids = NDArray[np.int64]

LOOKED_AT = 64
"""Samples of which all must be in the page cache for the rest to be believed to be."""

_read_into = ScratchBuffer()
"""Decoded before the next part comes."""


@dataclass(frozen=True)
class PageCacheFiles:
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
            count = file.read_into_buffers(buffers, offset)
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


class WorkerReads:
    """Of a supply: who reads its samples, decided anew for each pass."""

    def __init__(self, dataset: SampleIndex, open_files: OpenFiles, *, worth_it: bool) -> None:
        self.dataset = dataset
        self._open_files = open_files
        self._may_be_straight = worth_it and can_be_read_anywhere(dataset)
        self.straight = False
        """Whether workers read for themselves."""

    def look(self) -> None:
        """Decide who reads from now on: workers for themselves, if all has been read already."""
        self.straight = self._may_be_straight and is_in_memory(self.dataset)

    def straight_files(self) -> PageCacheFiles | None:
        """For workers, if they may have to read; they are told of no file that they do not need."""
        return PageCacheFiles(self._open_files) if self._may_be_straight else None

    def worker_read_bytes(self, samples: Ids) -> int:
        """Bytes of these that workers read for themselves."""
        return int(self.wanted_bytes[samples].sum()) if self.straight else 0

    def rng_ids(self, samples: Ids) -> Ids:
        """Return the sample numbers themselves: each sample seeds its random draws by its own number."""
        return samples

    @cached_property
    def wanted_bytes(self) -> Ids:
        """Of each sample, its wanted parts."""
        return self.dataset.wanted_bytes()


def can_be_read_anywhere(dataset: SampleIndex) -> bool:
    """Whether its shards are files, of which any part can be read."""
    return (
        hasattr(os, "preadv")
        and not any(index.compression for index in dataset.indexes)
        and not any(map(is_remote, dataset.paths))
    )


def is_in_memory(dataset: SampleIndex) -> bool:
    """By some samples from all over the dataset, the first and the last byte of each part.

    A file system that is nothing but memory does not answer; each is looked up once, by its device.
    """
    nothing_but_memory: dict[int, bool] = {}
    chosen = np.unique(np.linspace(0, len(dataset) - 1, LOOKED_AT, dtype=np.int64))
    shards = np.searchsorted(dataset.firsts, chosen, side="right") - 1
    for shard in np.unique(shards).tolist():
        index = dataset.indexes[shard]
        parts = dataset.parts[shard][chosen[shards == shard] - dataset.firsts[shard]].ravel()
        ends = np.maximum(index.offsets[parts] + index.lengths[parts] - 1, 0)
        with LocalFile(dataset.paths[shard]) as file:
            if all(is_cached(file.fd, place) for place in (*index.offsets[parts].tolist(), *ends.tolist())):
                continue
            device = os.fstat(file.fd).st_dev
        if device not in nothing_but_memory:
            nothing_but_memory[device] = identify_storage(dataset.paths[shard]).kind.in_memory
        if not nothing_but_memory[device]:
            return False
    return True

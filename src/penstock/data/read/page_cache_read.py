"""Lets workers read samples themselves when the shards are in the page cache, unless a block has many of them.

A block of a few MB holds only one large sample, and the samples that a sampler picks lie apart. Reading each of these
as a block costs the training process more than the kernel's copy: a request, a result, and many switches of the
interpreter's lock. A worker needs none of that, and raw arrays are read directly into their slot. What must come from a
disk is left to the reader threads, which limit the number of reads at a time and join what lies together.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from penstock.core.types import Ids
from penstock.data.read.block_layout import SHARD_BITS
from penstock.data.read.checksum import check_crc
from penstock.data.read.open_files import OpenFiles
from penstock.data.read.sample_index import SampleIndex
from penstock.errors import StorageError
from penstock.shards.codecs.images import ScratchBuffer
from penstock.storage.local import LocalFile
from penstock.storage.mounts import identify_storage
from penstock.storage.object_store.url import is_remote
from penstock.storage.page_cache import is_cached

INSPECTED_SAMPLES = 64
"""Samples that must all be in the page cache for the rest to be taken to be there."""

_scratch = ScratchBuffer()
"""Memory for the bytes of one part: it is decoded before the next part is read."""


@dataclass(frozen=True)
class PageCacheFiles:
    """The files that workers read. Threads of one process share the open files; another process opens its own."""

    open_files: OpenFiles

    def part(self, offset: int, length: int, crc32: int) -> memoryview:
        """Return the bytes of a part; they are valid until the next call in this thread."""
        data = _scratch.array((length,)).data
        self.fill(offset, [data], crc32)
        return data

    def fill(self, offset: int, buffers: Sequence[memoryview], crc32: int) -> None:
        """Read a part into these buffers, one after the other, which together have its length.

        `offset` is the negative offset of a row, see `block_layout`.
        """
        shard, shard_offset = divmod(~offset, 1 << SHARD_BITS)
        with self.open_files.lease(shard) as file:
            count = file.read_into_buffers(buffers, shard_offset)
            if count < sum(map(len, buffers)):
                end = shard_offset + count
                raise StorageError("ends before its index says", shard=file.path, offset=end, stage="read")
        check_crc(buffers, crc32)


class WorkerReadable:
    """Base of block sources whose samples workers may read themselves. That is decided anew for each epoch."""

    def __init__(self, sample_index: SampleIndex, open_files: OpenFiles, *, worth_it: bool) -> None:
        """`worth_it`: whether it saves time when workers read samples that are in the page cache."""
        self.sample_index = sample_index
        self._open_files = open_files
        self._workers_may_read = worth_it and are_plain_files(sample_index)
        self.workers_read = False
        """Whether workers read the samples themselves, so that no blocks are read."""

    def choose_readers(self) -> None:
        """Decide who reads from now on: the workers if all samples seem to be in the page cache."""
        self.workers_read = self._workers_may_read and is_in_memory(self.sample_index)

    def worker_files(self) -> PageCacheFiles | None:
        """Return the files for workers; None if workers never have to read."""
        return PageCacheFiles(self._open_files) if self._workers_may_read else None

    def worker_read_bytes(self, samples: Ids) -> int:
        """Return the bytes of these samples that workers read themselves."""
        return int(self.wanted_bytes[samples].sum()) if self.workers_read else 0

    @cached_property
    def wanted_bytes(self) -> Ids:
        """The bytes of each sample's wanted parts."""
        return self.sample_index.wanted_bytes()


def are_plain_files(sample_index: SampleIndex) -> bool:
    """Return whether all shards are local, uncompressed files, which can be read at any offset."""
    return (
        hasattr(os, "preadv")
        and not any(index.compression for index in sample_index.indexes)
        and not any(map(is_remote, sample_index.paths))
    )


def is_in_memory(sample_index: SampleIndex) -> bool:
    """Return whether the first and last byte of each part of some samples, spread over all shards, are in memory.

    A file system that keeps all files in memory, such as tmpfs, does not report cached pages. It is recognised by its
    type, which is found once per device.
    """
    memory_devices: dict[int, bool] = {}
    chosen = np.unique(np.linspace(0, len(sample_index) - 1, INSPECTED_SAMPLES, dtype=np.int64))
    shards = sample_index.shards_of(chosen)
    for shard in np.unique(shards).tolist():
        index = sample_index.indexes[shard]
        parts = sample_index.parts[shard][chosen[shards == shard] - sample_index.first_samples[shard]].ravel()
        last_bytes = np.maximum(index.offsets[parts] + index.lengths[parts] - 1, 0)
        with LocalFile(sample_index.paths[shard]) as file:
            if all(is_cached(file.fd, offset) for offset in (*index.offsets[parts].tolist(), *last_bytes.tolist())):
                continue
            device = os.fstat(file.fd).st_dev
        if device not in memory_devices:
            memory_devices[device] = identify_storage(sample_index.paths[shard]).kind.in_memory
        if not memory_devices[device]:
            return False
    return True

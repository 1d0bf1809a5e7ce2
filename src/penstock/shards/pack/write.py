"""Writes one shard: an ordinary tar, the same bytes for the same samples, its CRCs and index as it goes.

Also the small files beside it, whole or not at all, and what to say when the storage gives out.
"""

from __future__ import annotations

import errno
import os
import platform
import tarfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import deflate
import numpy as np

from penstock.errors import PenstockError, ShardError, StorageError
from penstock.shards.index import IndexBinding, OpenedShard, ShardIndex, build_index
from penstock.shards.pairing import split_at_dot
from penstock.shards.tar import TarMembers
from penstock.shards.tar_header import TAR_BLOCK

_END = bytes(2 * TAR_BLOCK)
SYNC_BYTES = 16 << 20
"""Sent to the disk while we go on: left to the end, the sync of a whole shard would keep a core waiting."""


class ShardWriter:
    """Appends samples to an open file. Header fields that vary between runs (time, owner) are fixed."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._members = TarMembers()
        self._crcs: list[int] = []
        self._unsynced = 0
        self._syncing: threading.Thread | None = None
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
            self._write(bytes(-len(data) % TAR_BLOCK))
        self.samples += 1

    def finish(self) -> None:
        """End the archive and see it onto the disk."""
        self._write(_END)
        self._file.flush()
        if self._syncing is not None:
            self._syncing.join()
        os.fsync(self._file.fileno())

    def index(self, path: str) -> ShardIndex:
        """The index of what was written, bound to the file as it lies at `path` now; renaming it changes nothing."""
        facts = os.stat(path)
        opened = OpenedShard(IndexBinding(facts.st_size, facts.st_mtime_ns), None, self.length)
        index = build_index(self._members, opened, crcs=np.array(self._crcs, np.uint32))
        if len(index) != self.samples:
            self._refuse(index)
        return index

    def _refuse(self, index: ShardIndex) -> None:
        """A `_word` that marked no part among all the samples of the source may look like one among these few."""
        known = set(index.keys)
        lost = next((name for name in self._members.names if split_at_dot(name)[0] not in known), None)
        raise ShardError(
            f"readers would take {len(self._crcs)} parts for {len(index)} samples, not for {self.samples}",
            member=lost,
            stage="pack",
            advice="Rename that sample: the end of its key reads as the name of a part.",
        )

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self.length += len(data)
        self._unsynced += len(data)
        if self._unsynced >= SYNC_BYTES and (self._syncing is None or not self._syncing.is_alive()):
            self._unsynced = 0
            self._syncing = threading.Thread(target=_sync_quietly, args=(self._file.fileno(),), daemon=True)
            self._syncing.start()


def _sync_quietly(fd: int) -> None:
    """Whatever goes wrong here, the sync at the end meets it again and says so."""
    with suppress(OSError):
        getattr(os, "fdatasync", os.fsync)(fd)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Says in our words what the system says when a write fails."""
    try:
        yield
    except PenstockError:
        raise
    except OSError as error:
        advice = "Run the same command again when it is mended: finished shards are kept."
        if error.errno == errno.ENOSPC:
            advice = "Free some space and run the same command again: finished shards are kept."
        raise StorageError(f"cannot write: {error.strerror}", shard=str(path), stage="pack", advice=advice) from error


def replace_file(path: Path, data: bytes) -> None:
    """Write under another name, then rename; what could not be written leaves nothing behind."""
    temporary = path.with_name(f".{path.name}.{platform.node()}-{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)

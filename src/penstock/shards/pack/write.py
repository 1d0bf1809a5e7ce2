"""Executes one task of a pack: writes a shard with its index and its report, each atomically.

A shard is an ordinary tar. The same samples give the same bytes, and the CRC32 of each part is computed while it is
written.
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
import msgspec
import numpy as np

from penstock.core.write_file import replace_file
from penstock.errors import PenstockError, SampleError, SettingError, ShardError, StorageError
from penstock.shards.index import IndexBinding, OpenedShard, ShardIndex, build_index, load_index, save_index
from penstock.shards.pack.convert import convert_parts, packed_key
from penstock.shards.pack.manifest import FieldFact, PackedShard, field_fact
from penstock.shards.pack.plan import PackTask
from penstock.shards.pack.sources import SampleSelection, read_samples
from penstock.shards.pairing import split_at_dot
from penstock.shards.tar import TarMembers
from penstock.shards.tar_header import TAR_BLOCK

_END = bytes(2 * TAR_BLOCK)
SYNC_BYTES = 16 << 20
"""Bytes after which a thread syncs the file to the disk while the next bytes are written. A single sync at the end of
the shard would leave the core idle for its whole duration."""


class ShardWriter:
    """Appends samples to an open file. The header fields that vary between runs (time, owner) are fixed."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._members = TarMembers()
        self._crcs: list[int] = []
        self._unsynced = 0
        self._syncing: threading.Thread | None = None
        self.length = 0
        self.samples = 0

    def add(self, key: str, parts: Iterable[tuple[str, bytes]]) -> None:
        """Write the parts of one sample, one after another."""
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
        """Write the end of the archive and sync the file to the disk."""
        self._write(_END)
        self._file.flush()
        if self._syncing is not None:
            self._syncing.join()
        os.fsync(self._file.fileno())

    def index(self, path: str) -> ShardIndex:
        """Return the index of the written samples, bound to the file at `path`; renaming the file keeps it valid."""
        status = os.stat(path)
        opened = OpenedShard(IndexBinding(status.st_size, status.st_mtime_ns), None, self.length)
        index = build_index(self._members, opened, crcs=np.array(self._crcs, np.uint32))
        if len(index) != self.samples:
            raise self._pairing_error(index)
        return index

    def _pairing_error(self, index: ShardIndex) -> ShardError:
        """Return the error for parts that readers would pair into other samples than those written.

        Which `_word` at the end of a name marks a part is inferred from all names of a shard. A word that marks no part
        in the source may do so among the few samples of this shard.
        """
        keys = set(index.keys)
        lost_part = next((name for name in self._members.names if split_at_dot(name)[0] not in keys), None)
        return ShardError(
            f"readers would pair the {len(self._crcs)} parts into {len(index)} samples instead of {self.samples}",
            member=lost_part,
            stage="pack",
            advice="Rename that sample: readers would take the end of its key for the name of a part.",
        )

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self.length += len(data)
        self._unsynced += len(data)
        if self._unsynced >= SYNC_BYTES and (self._syncing is None or not self._syncing.is_alive()):
            self._unsynced = 0
            self._syncing = threading.Thread(target=_sync_ignoring_errors, args=(self._file.fileno(),), daemon=True)
            self._syncing.start()


def _sync_ignoring_errors(fd: int) -> None:
    """Sync the file. An error is ignored here, since the sync at the end fails for the same reason and raises it."""
    with suppress(OSError):
        getattr(os, "fdatasync", os.fsync)(fd)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a StorageError with advice."""
    try:
        yield
    except PenstockError:
        raise
    except OSError as error:
        advice = "Remove the cause and run the same command again: finished shards are kept."
        if error.errno == errno.ENOSPC:
            advice = "Free some space and run the same command again: finished shards are kept."
        raise StorageError(f"cannot write: {error.strerror}", shard=str(path), stage="pack", advice=advice) from error


WORK_FOLDER = ".pack"
"""Folder below the target for the lock, the plan file and the reports of finished tasks."""
_BUFFER_BYTES = 1 << 20


def report_path(folder: Path, shard: str) -> Path:
    """Return the path of the report that a finished task writes."""
    return folder / WORK_FOLDER / (shard + ".json")


def finished_report(task: PackTask, folder: Path) -> PackedShard | None:
    """Return the report of an earlier run of the task; None if its shard or index is missing, changed or outdated."""
    try:
        report = msgspec.json.decode(report_path(folder, task.name).read_bytes(), type=PackedShard)
        status = os.stat(folder / task.name)
        index = load_index(folder / task.name)
    except (OSError, msgspec.MsgspecError, PenstockError):
        return None
    if report.fingerprint != task.fingerprint or index is None or index.crcs is None:
        return None
    unchanged = (index.binding.size, index.binding.mtime_ns) == (status.st_size, status.st_mtime_ns)
    return report if unchanged else None


def pack_shard(task: PackTask, folder: Path) -> PackedShard:
    """Write the shard under a temporary name, rename it, then write its index and its report.

    The report is written last: it states that the task is finished.
    """
    final = folder / task.name
    temporary = folder / f".{task.name}.{platform.node()}-{os.getpid()}.tmp"  # unique among the nodes of a cluster
    with storage_errors(final):
        try:
            with open(temporary, "wb", buffering=_BUFFER_BYTES) as file:
                writer = ShardWriter(file)
                fields, skipped = _write_samples(task, writer)
                writer.finish()
            index = writer.index(str(temporary))
            os.replace(temporary, final)
            _sync_folder(folder)
            save_index(index, final)
            report = PackedShard.of(task.name, task.fingerprint, index, fields, skipped)
            replace_file(report_path(folder, task.name), msgspec.json.encode(report))
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
    return report


def _write_samples(task: PackTask, writer: ShardWriter) -> tuple[dict[str, FieldFact], list[dict[str, str | int]]]:
    """Convert and write all samples; return the facts about their parts, by suffix, and the samples left out."""
    fields: dict[str, FieldFact] = {}
    skipped: list[dict[str, str | int]] = []
    for selection in task.selections:
        for key, parts, error in _convert_samples(task, selection):
            if error is not None:
                if task.options.on_bad == "raise":
                    raise error
                skipped.append({**error.where(), "reason": error.reason})
                continue
            writer.add(key, parts)
            for suffix, data in parts:
                fact = fields.get(suffix)
                if fact is None:
                    fields[suffix] = field_fact(suffix, data)
                else:
                    fact.add(suffix, data)
    return fields, skipped


def _convert_samples(
    task: PackTask, selection: SampleSelection
) -> Iterator[tuple[str, list[tuple[str, bytes]], PenstockError | None]]:
    """Yield the packed key and the converted parts of each sample, or no parts and the error that makes it bad."""
    for sample, parts in read_samples(selection):
        key = packed_key(selection.prefix + sample.key)
        if isinstance(parts, PenstockError):
            yield key, [], parts
            continue
        try:
            yield key, convert_parts(parts, task.options), None
        except (SampleError, SettingError) as error:
            error.member, error.offset = selection.place(sample, error.member)
            error.at(shard=selection.path, stage="pack")
            if isinstance(error, SettingError):  # it is about all samples
                raise
            yield key, [], error


def _sync_folder(folder: Path) -> None:
    """Sync a folder, which writes a rename in it to the disk; platforms that cannot open folders do so themselves."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

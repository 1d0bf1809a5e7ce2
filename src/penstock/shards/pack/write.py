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
import msgspec
import numpy as np

from penstock.errors import PenstockError, SampleError, ShardError, StorageError
from penstock.shards.index import IndexBinding, OpenedShard, ShardIndex, build_index, load_index, save_index
from penstock.shards.pack.convert import convert_parts, packed_key
from penstock.shards.pack.manifest import FieldFact, PackedShard, field_fact, replace_file
from penstock.shards.pack.plan import PackTask
from penstock.shards.pack.sources import SampleSelection, read_samples
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


WORK_FOLDER = ".pack"
_BUFFER_BYTES = 1 << 20


def report_path(folder: Path, shard: str) -> Path:
    """Where a finished task leaves its report."""
    return folder / WORK_FOLDER / (shard + ".json")


def finished_report(task: PackTask, folder: Path) -> PackedShard | None:
    """The report of an earlier run, if its shard is still there, whole and made from the same things."""
    try:
        report = msgspec.json.decode(report_path(folder, task.name).read_bytes(), type=PackedShard)
        facts = os.stat(folder / task.name)
        index = load_index(folder / task.name)
    except (OSError, msgspec.MsgspecError, PenstockError):
        return None
    same = report.fingerprint == task.fingerprint and index is not None and index.crcs is not None
    if not same or index is None or (index.binding.size, index.binding.mtime_ns) != (facts.st_size, facts.st_mtime_ns):
        return None
    return report


def pack_shard(task: PackTask, folder: Path) -> PackedShard:
    """Write the shard under a temporary name, then its index and report; the report is the sign that all is done."""
    final = folder / task.name
    temporary = folder / f".{task.name}.{platform.node()}-{os.getpid()}.tmp"  # nodes of a cluster share the folder
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
    fields: dict[str, FieldFact] = {}
    skipped: list[dict[str, str | int]] = []
    for take in task.selections:
        for key, parts, error in _convert_samples(task, take):
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
    task: PackTask, take: SampleSelection
) -> Iterator[tuple[str, list[tuple[str, bytes]], PenstockError | None]]:
    for sample, parts in read_samples(take):
        key = packed_key(take.prefix + sample.key)
        if isinstance(parts, PenstockError):
            yield key, [], parts
            continue
        try:
            yield key, convert_parts(parts, task.options), None
        except SampleError as error:
            part = sample.part(error.member or "") or sample.parts[0]
            error.member, error.offset = sample.key + part.suffix, part.offset
            yield key, [], error.at(shard=take.path, stage="pack")


def _sync_folder(folder: Path) -> None:
    """A rename is on the disk only when its folder is; platforms that cannot open a folder do it by themselves."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

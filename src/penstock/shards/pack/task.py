"""Makes one output shard. Idempotent: run it twice, or kill it and run it again, and the result is the same."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from penstock.errors import PenstockError, SampleError
from penstock.shards import index_file as indexfile
from penstock.shards.pack.convert import convert_parts
from penstock.shards.pack.manifest import FieldFact, PackedShard, field_fact, packed_key
from penstock.shards.pack.plan import PackTask
from penstock.shards.pack.sources import SampleSelection, read_samples
from penstock.shards.pack.write import ShardWriter, replace_file, storage_errors

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
        index = indexfile.load_index(folder / task.name)
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
            indexfile.save_index(index, final)
            report = PackedShard.of(task.name, task.fingerprint, index, fields, skipped)
            replace_file(report_path(folder, task.name), msgspec.json.encode(report))
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
    return report


def _write_samples(task: PackTask, writer: ShardWriter) -> tuple[dict[str, FieldFact], list[dict[str, str | int]]]:
    fields: dict[str, FieldFact] = {}
    skipped: list[dict[str, str | int]] = []
    for take in task.takes:
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

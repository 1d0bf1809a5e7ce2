"""Finds the record files that the user names, recognises their format, and lists their records."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from penstock.errors import SettingError, ShardError, WorkerCrash
from penstock.shards.pack.options import PackOptions, SourceFormat
from penstock.shards.pack.records import mds
from penstock.shards.pack.records.hdf5 import Hdf5Reader
from penstock.shards.pack.records.lmdb import LmdbReader
from penstock.shards.pack.records.mds import MdsReader
from penstock.shards.pack.records.parquet import ParquetReader
from penstock.shards.pack.records.reader import ListedRecords, RecordReader
from penstock.shards.pack.records.tfrecord import TFRecordReader, masked_crc
from penstock.shards.task_pool import Result, Task, TaskOutcome, run_tasks
from penstock.storage.object_store.url import is_remote
from penstock.storage.paths import expand_braces, is_shard_name

READERS: dict[str, type[RecordReader]] = {
    "parquet": ParquetReader,
    "mds": MdsReader,
    "tfrecord": TFRecordReader,
    "lmdb": LmdbReader,
    "hdf5": Hdf5Reader,
}
_ENDINGS = {
    "parquet": (".parquet",),
    "mds": (".mds", ".mds.zstd", ".mds.gz"),
    "tfrecord": (".tfrecord", ".tfrecords", ".tfrec"),
    "lmdb": (".lmdb", ".mdb"),
    "hdf5": (".h5", ".hdf5", ".hdf"),
}
_SHARD_NUMBER = re.compile(r"-\d{5}-of-\d{5}$")
"""Follows the ending of TFRecord files."""
_LMDB_DATA, _LMDB_LOCK = "data.mdb", "lock.mdb"
"""The two files of an LMDB that is a folder."""
_MAGIC = {"parquet": (0, b"PAR1"), "hdf5": (0, b"\x89HDF\r\n\x1a\n"), "lmdb": (16, b"\xde\xc0\xef\xbe")}
"""Offset and value of the bytes by which a file of an unknown name is recognised."""
_COMPANIONS = ("", ".md", ".txt", ".json", ".jsonl", ".yaml", ".yml", ".lock", ".lmdb-lock", ".py", ".crc")
"""Endings of files that lie beside the files of a dataset and hold no samples."""


@dataclass(frozen=True)
class RecordFile:
    """A file of records, with the reader of its dataset."""

    path: str
    reader: RecordReader
    listed: ListedRecords


def find_record_files(src: str, stated: SourceFormat) -> tuple[str, list[str]] | None:
    """Return the format and the files of records that `src` names; None if these are shards or loose files."""
    if stated == "files":
        return None
    if is_remote(src):
        if stated != "auto" or format_by_name(src):
            raise SettingError(
                f"{src!r} is in an object store", advice="Copy the files to a disk: records are read there"
            )
        return None
    if os.path.isdir(src):
        found = _in_folder(src, stated)
    else:
        named = [src] if os.path.exists(src) else [path for name in expand_braces(src) for path in _matches(name)]
        found = _of_one_format([path for path in map(_database_file, named) if not is_shard_name(path)], stated)
    if found is None and stated != "auto":
        raise SettingError(f"{src!r} names no files of the format {stated}")
    return found


def _in_folder(folder: str, stated: SourceFormat) -> tuple[str, list[str]] | None:
    names = sorted(name for name in os.listdir(folder) if not name.startswith((".", "_")))
    if stated == "auto" and any(map(is_shard_name, names)):
        return None
    described = mds.INDEX_NAME in names and "mds" in map(format_by_name, names)
    if stated == "mds" or (stated == "auto" and described):
        return "mds", list(mds.shard_files(folder))
    if stated in ("auto", "lmdb") and _LMDB_DATA in names:
        return "lmdb", [os.path.join(folder, _LMDB_DATA)]
    paths = [_database_file(os.path.join(folder, name)) for name in names]
    paths = [path for path in paths if os.path.isfile(path)]
    records = [path for path in paths if format_by_name(path) is not None]
    if stated != "auto":
        return _of_one_format([path for path in records if format_by_name(path) == stated] or paths, stated)
    keys = {os.path.basename(path).partition(".")[0] for path in records}
    others = [path for path in paths if path not in records]
    if not records or any(os.path.basename(path).partition(".")[0] in keys for path in others):
        return None  # such as `0001.jpg` beside `0001.h5`: parts of one sample
    odd = next((path for path in others if os.path.splitext(path)[1].lower() not in _COMPANIONS), None)
    if odd is not None:
        raise SettingError(
            f"holds files of records, such as {os.path.basename(records[0])!r}, and other files, such as "
            f"{os.path.basename(odd)!r}",
            shard=folder,
            stage="pack",
            advice="Name the files to pack, or give --source-format",
        )
    return _of_one_format(records, stated)


def _of_one_format(paths: Sequence[str], stated: SourceFormat) -> tuple[str, list[str]] | None:
    formats = {path: _format_of(path) if stated == "auto" else stated for path in paths}
    known = {path: format_name for path, format_name in formats.items() if format_name is not None}
    if not known:
        return None
    if len(set(formats.values())) > 1:
        first, other = next((first, path) for first in known for path in paths if formats[path] != formats[first])
        raise SettingError(
            f"{first!r} and {other!r} are not of the same format", stage="pack", advice="Pack them one after the other"
        )
    if "mds" in known.values():
        raise SettingError(
            "the shards of an MDS dataset are described by its index",
            stage="pack",
            advice="Name their folder, which holds index.json",
        )
    return next(iter(known.values())), list(dict.fromkeys(paths))


def format_by_name(path: str) -> str | None:
    """Return the format of a file with records by its name; None if the name is that of another file."""
    name = os.path.basename(path).lower()
    if name in (_LMDB_DATA, _LMDB_LOCK):
        return "lmdb" if name == _LMDB_DATA else None
    plain = _SHARD_NUMBER.sub("", name)
    if plain != name and "." not in plain and os.path.isfile(path):
        return "tfrecord" if _begins_with_record(path) else None
    return next((known for known, endings in _ENDINGS.items() if plain.endswith(endings)), None)


def _format_of(path: str) -> str | None:
    """Return the format by the name, or else by the first bytes."""
    by_name = format_by_name(path)
    if by_name is not None or not os.path.isfile(path):
        return by_name
    head = _first_bytes(path)
    return next((known for known, (at, magic) in _MAGIC.items() if head[at : at + len(magic)] == magic), None)


def _begins_with_record(path: str) -> bool:
    head = _first_bytes(path)
    return len(head) >= 12 and int.from_bytes(head[8:12], "little") == masked_crc(head[:8])


def _first_bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(32)
    except OSError:
        return b""


def _database_file(path: str) -> str:
    """Return the data file of an LMDB that is a folder; other paths unchanged."""
    inside = os.path.join(path, _LMDB_DATA)
    return inside if os.path.isfile(inside) else path


def _matches(pattern: str) -> list[str]:
    return [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))


def list_record_files(format_name: str, paths: Sequence[str], options: PackOptions) -> Iterator[RecordFile]:
    """List the records of all files, in worker processes: a damaged file may end the process that reads it."""
    opened = run_tasks(partial(_open_reader, format_name, options), [tuple(paths)])
    ((_, reader),) = task_results(opened, paths[0])
    listed: dict[str, ListedRecords] = dict(task_results(run_tasks(partial(_list_file, reader), paths)))
    expected = mds.shard_files(os.path.dirname(paths[0])) if format_name == "mds" else {}
    for path in paths:
        count = len(listed[path].index)
        if expected.get(path, count) != count:
            raise ShardError(f"has {count} samples, and its index states {expected[path]}", shard=path, stage="read")
        yield RecordFile(path, reader, listed[path])


def _open_reader(format_name: str, options: PackOptions, paths: tuple[str, ...]) -> RecordReader:
    return READERS[format_name].open(paths, options.columns)


def _list_file(reader: RecordReader, path: str) -> ListedRecords:
    return reader.list_records(path)


def task_results(
    outcomes: Iterable[TaskOutcome[Task, Result]], path: str | None = None
) -> Iterator[tuple[Task, Result]]:
    """Yield the task and the result of each outcome; raise the first error.

    Without a `path`, tasks are the paths of files, of which the error names the one whose reading killed a worker.
    """
    for outcome in outcomes:
        if isinstance(outcome.error, WorkerCrash):
            outcome.error.advice = "The file may be damaged: copy or download it again"
            raise outcome.error.at(shard=str(outcome.task) if path is None else path)
        if outcome.error is not None or outcome.result is None:
            raise outcome.error or WorkerCrash("a task gave no result", stage="read")
        yield outcome.task, outcome.result

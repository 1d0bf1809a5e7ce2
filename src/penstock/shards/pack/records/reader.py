"""The interface of all readers of records, with the index of a file's records and the checks that they share."""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from penstock.core.sample import Sample
from penstock.core.types import Ints
from penstock.errors import DecodeError, SampleError, SettingError, ShardError, StorageError
from penstock.shards.index import IndexBinding, ShardIndex
from penstock.shards.pack.records.columns import RecordColumn, StatedColumns
from penstock.shards.validate import ShardProblem

Parts = list[tuple[str, bytes]]
"""(suffix, bytes) of each part of a sample."""
DAMAGED = "Copy or download it again"
SMALL_COUNT = 1 << 20
"""Records that a file of any size may have: so many need little memory."""
RECORDS_PER_BYTE = 64
"""Most records per byte of a larger file. Equal values, such as labels, are compressed to less than a bit each."""


@dataclass(frozen=True)
class ListedRecords:
    """The records of one file."""

    index: ShardIndex
    """One part per record, without a suffix, whose length is an estimate of the record's bytes and whose offset is
    the place where the reader finds it. The exception are records that are parts already (`RecordReader.named_parts`).
    """
    problems: tuple[ShardProblem, ...] = ()
    """The places in the file from which no records can be read."""


@dataclass(frozen=True)
class RecordReader(ABC):
    """Reads the records of all files of one dataset. It is a part of every task, so it is small and picklable."""

    columns: tuple[RecordColumn, ...]

    format_name: ClassVar[str]
    library: ClassVar[tuple[str, str] | None] = None
    """The optional module that reads the format, and the extra that installs it."""
    byte_offsets: ClassVar[bool] = False
    """Whether the offset of a record is its position in the file in bytes, as error messages have it."""

    @property
    def named_parts(self) -> bool:
        """Whether the records are not samples but parts, which are paired by their names as the members of a shard."""
        return False

    @classmethod
    @abstractmethod
    def open(cls, paths: Sequence[str], columns: StatedColumns) -> Self:
        """Return the reader for these files, with the columns that the first of them has."""

    @abstractmethod
    def list_records(self, path: str) -> ListedRecords:
        """Return the records of a file; raise ShardError if the file as a whole is unusable."""

    @abstractmethod
    def read(self, path: str, samples: Sequence[Sample]) -> Iterator[Parts | SampleError]:
        """Yield the parts of each sample, or the error that makes it bad; `samples` are in the order of the index."""


def import_library(name: str, extra: str) -> Any:
    """Import an optional module; a SettingError names the extra that installs it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise SettingError(
            f"{name.partition('.')[0]} is not installed, and this format is read with it",
            advice=f"Install it: pip install 'penstock[{extra}]'",
        ) from error


def file_binding(path: str) -> IndexBinding:
    """Return the current version of a file."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise StorageError(f"cannot open: {error.strerror}", shard=path, stage="open") from error
    return IndexBinding(status.st_size, status.st_mtime_ns)


def check_unchanged(path: str, binding: IndexBinding) -> None:
    """Raise if the file is another version than the one whose records were listed."""
    if file_binding(path) != binding:
        raise ShardError(
            "changed since its records were listed",
            shard=path,
            stage="read",
            advice="Do not change the sources while they are packed, and start again.",
        )


def check_count(count: int, path: str) -> None:
    """Raise if a file states more records than are plausible, before anything is allocated for them."""
    size = file_binding(path).size
    if not 0 <= count <= max(SMALL_COUNT, RECORDS_PER_BYTE * size):
        raise damaged_file(f"states {count} records in {size} bytes", path)


def record_index(path: str, offsets: Ints, sizes: Ints, keys: Sequence[str] | None = None) -> ShardIndex:
    """Return the index of a file's records; without keys, a record's key is its number in the file."""
    count = len(offsets)
    binding = file_binding(path)
    return ShardIndex(
        binding=binding,
        compression=None,
        data_length=binding.size,
        keys=[f"{number:08d}" for number in range(count)] if keys is None else list(keys),
        suffixes=[""],
        starts=np.arange(count + 1, dtype=np.int64),
        suffix_ids=np.zeros(count, np.uint32),
        offsets=offsets,
        lengths=sizes,
        crcs=None,
        other_members=[],
        unreadable={},
    )


def damaged_file(reason: str, path: str) -> ShardError:
    """Return the error for a file that is unusable as a whole."""
    return ShardError(reason, shard=path, stage="read", advice=DAMAGED)


def damaged_record(reason: str) -> DecodeError:
    """Return the error for one record; the place is filled in by the caller of the reader."""
    return DecodeError(reason, stage="read", advice=DAMAGED + ", or leave the sample out")


def raise_if_disk_failed(error: Exception, path: str) -> None:
    """Raise a StorageError if the system reported the error; libraries raise OSErrors for damaged data too."""
    if isinstance(error, OSError) and error.errno is not None:
        raise StorageError(f"cannot read: {error.strerror or error}", shard=path, stage="read") from error

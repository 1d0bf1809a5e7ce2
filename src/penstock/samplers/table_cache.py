"""Metadata kept in the user's cache: columns as bytes in a JSON file, checked before they are believed."""

from __future__ import annotations

import hashlib
import inspect
import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from penstock.core import user_cache as kept
from penstock.core.process_lock import file_lock
from penstock.data.sources.shards import ShardSource
from penstock.samplers.table import Column, MetadataTable

VERSION = 1
"""Raised whenever metadata is read in another way."""
_FOLDER = "metadata"
_FILE_BYTES_MAX = 1 << 30
"""Some thirty million samples with three columns."""


@dataclass(frozen=True, slots=True)
class TableKey:
    """What a table holds for."""

    fingerprint: str
    source: str
    """Suffix of the part, or name of the function."""
    columns: tuple[str, ...] | None
    """As asked for."""
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class _StoredColumn:
    dtype: Literal["<i1", "<i2", "<i4", "<i8", "<f8"]
    data: bytes
    words: list[str] | None


@dataclass(frozen=True, slots=True)
class _TableRecord:
    key: TableKey
    columns: dict[str, _StoredColumn]


def load(key: TableKey, samples: int) -> MetadataTable | None:
    """What is kept, if it is whole and of as many samples."""
    record = kept.load_record(_FOLDER, key, _TableRecord, _FILE_BYTES_MAX)
    if record is None or not record.columns or not samples:
        return None
    columns = {name: _loaded(stored, samples) for name, stored in record.columns.items()}
    whole = {name: column for name, column in columns.items() if column is not None}
    return MetadataTable(whole) if len(whole) == len(columns) else None


def store(key: TableKey, table: MetadataTable) -> None:
    """Keep it."""
    kept.store_record(_FOLDER, _TableRecord(key, {name: _stored(column) for name, column in table.columns.items()}))


def one_reader(key: TableKey) -> AbstractContextManager[None]:
    """Of the ranks on a machine one reads the metadata, and the others find it kept."""
    digest = hashlib.sha256(key.fingerprint.encode()).hexdigest()[:32]
    return file_lock(_FOLDER, f"{digest}.lock")


def _stored(column: Column) -> _StoredColumn:
    if column.data.dtype == np.float64:
        return _StoredColumn("<f8", column.data.astype("<f8").tobytes(), None)
    kind = np.result_type(np.min_scalar_type(int(column.data.min())), np.min_scalar_type(int(column.data.max())), "i1")
    dtype: Literal["<i1", "<i2", "<i4", "<i8"] = f"<i{min(kind.itemsize, 8)}"  # type: ignore[assignment]
    return _StoredColumn(
        dtype, column.data.astype(dtype).tobytes(), None if column.words is None else list(column.words)
    )


def _loaded(stored: _StoredColumn, samples: int) -> Column | None:
    if len(stored.data) != samples * np.dtype(stored.dtype).itemsize:
        return None
    wide = np.float64 if stored.dtype == "<f8" else np.int64
    data = np.frombuffer(stored.data, stored.dtype).astype(wide)
    if stored.words is None:
        return Column(data)
    sound = stored.dtype != "<f8" and data.min() >= 0 and data.max() < len(stored.words)
    return Column(data, tuple(stored.words)) if sound else None


def of_shards(feed: ShardSource) -> str:
    """Of the samples, and of every shard's size and time: a part may change without changing its length."""
    digest = hashlib.sha256(str(feed.identity()["fingerprint"]).encode())
    for index in feed.sample_index.indexes:
        digest.update(f"{index.binding.size} {index.binding.mtime_ns} {index.binding.etag}\n".encode())
    return digest.hexdigest()[:32]


def of_dataset(dataset: Any, function: Callable[[Any], Any]) -> str | None:
    """Of what the dataset holds and of the function's own code; None where they cannot be written down.

    A pickle is made to be digested and is never read. Files that the dataset opens are not looked into.
    """
    try:
        held = pickle.dumps((dataset, *_bound(function)), protocol=5)
        code = inspect.getsource(_code_of(function))
    except Exception:  # whatever a dataset holds may refuse in its own way
        return None
    return hashlib.sha256(held + code.encode()).hexdigest()[:32]


def _code_of(function: Any) -> Any:
    if isinstance(function, partial):
        return _code_of(function.func)
    return function if inspect.isroutine(function) else type(function)


def _bound(function: Any) -> tuple[Any, ...]:
    """What a function carries with it, besides its code."""
    if isinstance(function, partial):
        return (function.args, function.keywords, *_bound(function.func))
    if not inspect.isfunction(function):
        return (function,)
    return (function.__defaults__, function.__kwdefaults__, [cell.cell_contents for cell in function.__closure__ or ()])

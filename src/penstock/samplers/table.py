"""The table of metadata that samplers use (identity, modality, camera, length), and its copy in the user's cache."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from math import isnan
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from penstock.core.process_lock import file_lock
from penstock.core.text import suggest_name
from penstock.core.types import Ids
from penstock.core.user_cache import load_record, store_record
from penstock.errors import SampleError, SettingError

Value = str | int | float
Locate = Callable[[int], Mapping[str, Any]]
"""A function from the number of a sample to its place as an error reports it: shard, member, offset."""
_MAX_LISTED = 6
"""Values of a column that are listed with their shares; of more, only the number of values is reported."""


@dataclass(frozen=True, eq=False, slots=True)
class Column:
    """One value for each sample."""

    data: NDArray[Any]
    """Numbers as int64 or float64; for strings, their indices in `categories`."""
    categories: tuple[str, ...] | None = None
    """The distinct strings in alphabetical order; None for numbers."""

    def codes(self) -> tuple[Ids, list[Value]]:
        """Return the index of each sample's value, and the distinct values in order."""
        if self.categories is not None:
            return self.data, list(self.categories)
        values, codes = np.unique(self.data, return_inverse=True)
        return codes.astype(np.int64), values.tolist()

    def value(self, sample: int) -> Value:
        """Return the value of one sample."""
        number: int | float = self.data[sample].item()
        return number if self.categories is None else self.categories[int(number)]


@dataclass(frozen=True, eq=False)
class MetadataTable:
    """Columns over all samples of a dataset, in its order: read once, then used for every epoch."""

    columns: Mapping[str, Column]

    def __post_init__(self) -> None:
        lengths = {name: len(column.data) for name, column in self.columns.items()}
        if not lengths:
            raise SettingError("a table of metadata needs at least one column")
        if len(set(lengths.values())) > 1:
            raise SettingError(f"columns of metadata differ in length: {lengths}")
        if not len(self):
            raise SettingError("the dataset is empty: there is nothing to draw from")

    @classmethod
    def of(cls, **columns: Sequence[Any] | NDArray[Any]) -> Self:
        """Make a table of values in memory: `MetadataTable.of(identity=[3, 3, 7], modality=["rgb", "ir", "rgb"])`."""
        return cls({name: as_column(name, list(values), _locate_by_number) for name, values in columns.items()})

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())).data)

    def column(self, name: str) -> Column:
        """Return a column by its name; the error for a missing one suggests the nearest name."""
        if name not in self.columns:
            raise SettingError(f"metadata has no column {name!r}", advice=suggest_name(name, self.columns))
        return self.columns[name]

    def numbers(self, name: str) -> NDArray[np.float64]:
        """Return a column of numbers as float64; a column of strings is an error."""
        column = self.column(name)
        if column.categories is not None:
            example = column.categories[0]
            raise SettingError(f"column {name!r} holds strings, such as {example!r}, where numbers are needed")
        return column.data.astype(np.float64)

    def row(self, sample: int) -> dict[str, Value]:
        """Return all values of one sample by column."""
        return {name: column.value(sample) for name, column in self.columns.items()}

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all names and values."""
        digest = hashlib.sha256()
        for name, column in self.columns.items():
            digest.update(f"{name} {column.data.dtype.str} {column.categories}\n".encode())
            digest.update(column.data.tobytes())
        return digest.hexdigest()[:32]

    def __str__(self) -> str:
        return f"{len(self):,} samples: " + ", ".join(_describe(name, each) for name, each in self.columns.items())


def as_table(rows: Sequence[Any], names: Sequence[str] | None, locate: Locate) -> MetadataTable:
    """Make a table of one mapping per sample; without names, of all numbers and strings that the first sample has."""
    for sample, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise _bad_metadata(f"metadata is {type(row).__name__}, not a mapping of names to values", locate(sample))
    if not rows:
        raise SettingError("the dataset is empty: there is no metadata to read")
    if names is None:
        names = [name for name, value in rows[0].items() if isinstance(_as_plain(value), str | int | float)]
    return MetadataTable({name: as_column(name, _values(rows, name, locate), locate) for name in names})


def as_column(name: str, values: Sequence[Any], locate: Locate) -> Column:
    """Make a column of strings or of numbers, not both; numpy's numbers and tensors of one number are accepted."""
    plain = [_as_plain(value) for value in values]
    kinds = set(map(type, plain))
    if kinds == {str}:
        categories = sorted(set(plain))
        index_of = {text: index for index, text in enumerate(categories)}
        return Column(np.fromiter((index_of[text] for text in plain), np.int64, len(plain)), tuple(categories))
    expected = str if plain and isinstance(plain[0], str) else (int, float, bool)
    for sample, value in enumerate(plain):
        if not isinstance(value, expected) or (isinstance(value, float) and isnan(value)):
            kind = "a string" if expected is str else "a number"
            raise _bad_metadata(f"{name} is {value!r}, not {kind} as in other samples", locate(sample))
    try:
        return Column(np.array(plain, np.float64 if float in kinds else np.int64))
    except OverflowError as error:
        raise SettingError(f"{name} has numbers that do not fit into 64 bits") from error


def _values(rows: Sequence[Mapping[str, Any]], name: str, locate: Locate) -> list[Any]:
    try:
        return [row[name] for row in rows]
    except KeyError:
        sample = next(sample for sample, row in enumerate(rows) if name not in row)
        names = ", ".join(map(repr, rows[sample]))
        raise _bad_metadata(f"metadata has no {name!r}, only {names}", locate(sample)) from None


def _locate_by_number(sample: int) -> dict[str, Any]:
    return {"member": str(sample)}


def _as_plain(value: Any) -> Any:
    """Return a number of numpy or a tensor of one number as a Python number; anything else unchanged."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def _bad_metadata(reason: str, place: Mapping[str, Any]) -> SampleError:
    return SampleError(
        reason,
        stage="metadata",
        advice="Give every sample the same names, or select with columns= which of them to read",
        **place,
    )


def _describe(name: str, column: Column) -> str:
    codes, values = column.codes()
    if len(values) > _MAX_LISTED:
        return f"{name} ({len(values):,} values)"
    shares = np.bincount(codes, minlength=len(values)) / len(codes)
    return f"{name} ({', '.join(f'{value} {share:.0%}' for value, share in zip(values, shares, strict=True))})"


# -- the user's cache --------------------------------------------------------------------------------------------------

VERSION = 1
"""Version of the cached content, to be raised when metadata is read differently."""
_FOLDER = "metadata"
_MAX_FILE_BYTES = 1 << 30
"""Some thirty million samples with three columns."""


@dataclass(frozen=True, slots=True)
class TableKey:
    """The data and settings that a cached table belongs to."""

    fingerprint: str
    """Fingerprint of the samples and of the function."""
    source: str
    """Suffix of the part, or name of the function."""
    columns: tuple[str, ...] | None
    """The requested columns; None for all of the first sample."""
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class _StoredColumn:
    dtype: Literal["<i1", "<i2", "<i4", "<i8", "<f8"]
    data: bytes
    words: list[str] | None
    """The categories of the column."""


@dataclass(frozen=True, slots=True)
class _TableRecord:
    key: TableKey
    columns: dict[str, _StoredColumn]


def load_table(key: TableKey, samples: int) -> MetadataTable | None:
    """Return the cached table; None if there is none, or it is damaged or of another number of samples."""
    record = load_record(_FOLDER, key, _TableRecord, _MAX_FILE_BYTES)
    if record is None or not record.columns or not samples:
        return None
    columns = {name: _load_column(stored, samples) for name, stored in record.columns.items()}
    valid = {name: column for name, column in columns.items() if column is not None}
    return MetadataTable(valid) if len(valid) == len(columns) else None


def store_table(key: TableKey, table: MetadataTable) -> None:
    """Write the table into the cache."""
    columns = {name: _store_column(column) for name, column in table.columns.items()}
    store_record(_FOLDER, _TableRecord(key, columns))


def table_lock(key: TableKey) -> AbstractContextManager[None]:
    """Return a lock so that one of the ranks on a machine reads the metadata, and the others find it in the cache."""
    digest = hashlib.sha256(key.fingerprint.encode()).hexdigest()[:32]
    return file_lock(_FOLDER, f"{digest}.lock")


def _store_column(column: Column) -> _StoredColumn:
    if column.data.dtype == np.float64:
        return _StoredColumn("<f8", column.data.astype("<f8").tobytes(), None)
    kind = np.result_type(np.min_scalar_type(int(column.data.min())), np.min_scalar_type(int(column.data.max())), "i1")
    dtype: Literal["<i1", "<i2", "<i4", "<i8"] = f"<i{min(kind.itemsize, 8)}"  # type: ignore[assignment]
    categories = None if column.categories is None else list(column.categories)
    return _StoredColumn(dtype, column.data.astype(dtype).tobytes(), categories)


def _load_column(stored: _StoredColumn, samples: int) -> Column | None:
    if len(stored.data) != samples * np.dtype(stored.dtype).itemsize:
        return None
    dtype = np.float64 if stored.dtype == "<f8" else np.int64
    data = np.frombuffer(stored.data, stored.dtype).astype(dtype)
    if stored.words is None:
        return Column(data)
    valid = stored.dtype != "<f8" and data.min() >= 0 and data.max() < len(stored.words)
    return Column(data, tuple(stored.words)) if valid else None

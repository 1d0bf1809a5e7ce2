"""Reads Parquet files, in particular those of Hugging Face with images as {"bytes", "path"} structs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any, Self

import numpy as np

from penstock.core.sample import Sample
from penstock.errors import PenstockError, SampleError
from penstock.shards.pack.records.columns import FoundColumn, StatedColumns, assign_roles, image_ending, record_parts
from penstock.shards.pack.records.reader import (
    ListedRecords,
    Parts,
    RecordReader,
    check_count,
    damaged_file,
    damaged_record,
    import_library,
    raise_if_disk_failed,
    record_index,
)

BATCH_BYTES = 16 << 20
"""Bytes of the rows that are decoded at once."""
MAX_BATCH_ROWS = 1024
INSPECTED_ROWS = 16
"""Rows read to find out whether a column of bytes without a declared type holds images."""
MAX_METADATA_BYTES = 256 << 20
"""Largest schema and list of row groups that is parsed. A file of a million row groups has less."""
_PATH = ".path"
"""Ends the name of the column with the file names of an image column."""


@dataclass(frozen=True)
class ParquetReader(RecordReader):
    """Reads rows. A row that cannot be decoded costs the rest of its row group, which can only be read in order."""

    names: tuple[str, ...]
    """The columns that are read from the files."""

    format_name = "Parquet"
    library = ("pyarrow", "parquet")

    @classmethod
    def open(cls, paths: Sequence[str], columns: StatedColumns) -> Self:
        """Return the reader, with the columns of the first file's schema."""
        with _ParquetFile(paths[0]) as file:
            chosen = assign_roles(list(_found_columns(file)), columns, paths[0])
            in_file = file.arrow.schema_arrow.names
        names = (column.name if column.name in in_file else column.name.removesuffix(_PATH) for column in chosen)
        return cls(chosen, tuple(dict.fromkeys(names)))

    def list_records(self, path: str) -> ListedRecords:
        """Return the rows; the size of a row is the mean of its row group, of the columns that are packed."""
        with _ParquetFile(path) as file:
            missing = [name for name in self.names if name not in file.arrow.schema_arrow.names]
            if missing:
                raise damaged_file(f"has no column {missing[0]!r}, which the first file of the source has", path)
            classes = {column.name: column.classes for column in _found_columns(file)}
            labels = [column for column in self.columns if column.role == "label"]
            other = next((column.name for column in labels if column.classes != classes[column.name]), None)
            if other is not None:
                raise damaged_file(f"has other classes in column {other!r} than the first file of the source", path)
            metadata = file.arrow.metadata
            groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
            rows = np.array([group.num_rows for group in groups], np.int64)
            if (rows < 0).any() or rows.sum() < metadata.num_rows:
                raise damaged_file(f"states {metadata.num_rows} rows, and its row groups have {rows.sum()}", path)
            check_count(int(rows.sum()), path)
            sizes = np.array([self._bytes_per_row(group) for group in groups], np.int64)
        return ListedRecords(record_index(path, np.arange(rows.sum()), np.repeat(sizes, rows)))

    def read(self, path: str, samples: Sequence[Sample]) -> Iterator[Parts | SampleError]:
        """Yield the parts of each row; each row group is read once, up to its last row that is wanted."""
        rows = [sample.parts[0].offset for sample in samples]
        with _ParquetFile(path) as file:
            metadata = file.arrow.metadata
            counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
            ends = np.cumsum(counts)
            for group, wanted in groupby(rows, key=lambda row: int(np.searchsorted(ends, row, "right"))):
                first = int(ends[group]) - counts[group]
                yield from self._read_group(file, group, [row - first for row in wanted])

    def _read_group(self, file: _ParquetFile, group: int, rows: list[int]) -> Iterator[Parts | SampleError]:
        size = self._bytes_per_row(file.arrow.metadata.row_group(group))
        batch_size = max(1, min(MAX_BATCH_ROWS, BATCH_BYTES // size))
        batches = file.batches(batch_size, row_groups=[group], columns=list(self.names))
        done = start = 0
        while done < len(rows):
            try:
                batch = next(batches)
            except StopIteration:
                failure = f"row group {group} ends after {start} rows"
                break
            except file.errors as error:
                raise_if_disk_failed(error, file.path)
                failure = f"row group {group} cannot be decoded from its row {start} on: {error}"
                break
            while done < len(rows) and rows[done] < start + len(batch):
                yield self._row_parts(batch, rows[done] - start, file.errors)
                done += 1
            start += len(batch)
        for _ in rows[done:]:
            yield damaged_record(failure)

    def _row_parts(self, batch: Any, row: int, errors: tuple[type[Exception], ...]) -> Parts | SampleError:
        # ValueError stands for text that is not UTF-8, OverflowError for times out of range.
        unreadable: tuple[type[Exception], ...] = (*errors, OverflowError)  # the latter for times out of range
        roles = {column.name: column.role for column in self.columns}
        values: dict[str, Any] = {}
        try:
            for name in self.names:
                value = batch.column(name)[row]
                values[name] = _numbers(value) if roles.get(name) == "array" else value.as_py()
                if roles.get(name) != "json" and isinstance(values[name], dict):
                    struct = values.pop(name)
                    values[name] = struct.get("bytes")
                    if struct.get("path") is not None:
                        values[name + _PATH] = struct["path"]
            return record_parts(self.columns, values)
        except SampleError as error:
            return error
        except unreadable as error:
            return damaged_record(f"the row cannot be converted: {error}")

    def _bytes_per_row(self, group: Any) -> int:
        """Return the mean bytes of a row of a row group, uncompressed."""
        chunks = [group.column(number) for number in range(group.num_columns)]
        sizes = [chunk.total_uncompressed_size for chunk in chunks if self._is_read(chunk.path_in_schema)]
        return int(max(1, min(sum(sizes), 1 << 60) // max(1, group.num_rows)))

    def _is_read(self, path_in_schema: str) -> bool:
        return any(path_in_schema == name or path_in_schema.startswith(name + ".") for name in self.names)


class _ParquetFile:
    """An open file; what the library raises for a damaged one becomes an error with its path."""

    def __init__(self, path: str) -> None:
        pyarrow, parquet = import_library("pyarrow", "parquet"), import_library("pyarrow.parquet", "parquet")
        self.path = path
        self.types = pyarrow.types
        self.errors: tuple[type[Exception], ...] = (pyarrow.ArrowException, OSError, ValueError)
        """The errors that the library raises for damaged data; ValueError stands for text that is not UTF-8."""
        try:
            self.arrow = parquet.ParquetFile(
                path,
                page_checksum_verification=True,
                thrift_string_size_limit=MAX_METADATA_BYTES,
                thrift_container_size_limit=MAX_METADATA_BYTES,
            )
        except self.errors as error:
            raise_if_disk_failed(error, path)
            raise damaged_file(f"cannot be read as Parquet: {error}", path) from error

    def batches(self, batch_size: int, **selection: Any) -> Iterator[Any]:
        """Return an iterator over record batches; it uses one thread, as every process of a pack does."""
        batches: Iterator[Any] = self.arrow.iter_batches(batch_size=batch_size, use_threads=False, **selection)
        return batches

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.arrow.close()
        if isinstance(error, self.errors) and not isinstance(error, PenstockError):
            raise_if_disk_failed(error, self.path)
            raise damaged_file(f"is damaged: {error}", self.path) from error


def _found_columns(file: _ParquetFile) -> Iterator[FoundColumn]:
    """Yield the columns; the classes of a label and the type of an image are stated in Hugging Face's metadata."""
    schema = file.arrow.schema_arrow
    features = _features(file.path, schema.metadata)
    for field in schema:
        feature = features.get(field.name)
        classes = feature.get("names") if feature and feature.get("_type") == "ClassLabel" else None
        yield _found_column(file, field, feature, tuple(map(str, classes)) if isinstance(classes, list) else ())
        if file.types.is_struct(field.type) and "path" in _struct_fields(field.type):
            yield FoundColumn(field.name + _PATH, "other")


def _found_column(file: _ParquetFile, field: Any, feature: Any, classes: tuple[str, ...]) -> FoundColumn:
    types, kind = file.types, field.type
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_integer(kind):
        return FoundColumn(field.name, "integer", classes)
    if types.is_string(kind) or types.is_large_string(kind):
        return FoundColumn(field.name, "string")
    if _is_binary(types, kind) or (types.is_struct(kind) and "bytes" in _struct_fields(kind)):
        declared = feature.get("_type") if feature else None
        is_image = declared == "Image" or (declared is None and _holds_images(file, field.name))
        return FoundColumn(field.name, "image" if is_image else "bytes")
    if _has_binary(types, kind):
        return FoundColumn(field.name, "other", refusal="holds lists or structs of bytes, which no part stands for")
    return FoundColumn(field.name, "other")


def _features(path: str, metadata: dict[bytes, bytes] | None) -> dict[str, dict[str, Any]]:
    """Return the features that Hugging Face datasets describe in the schema's metadata."""
    try:
        described = json.loads((metadata or {}).get(b"huggingface", b"{}"))
    except (ValueError, RecursionError) as error:
        raise damaged_file(f"has a description of its features that is no JSON: {error}", path) from error
    try:
        features = described["info"]["features"]
        return {name: feature for name, feature in features.items() if isinstance(feature, dict)}
    except (KeyError, TypeError, AttributeError):  # a description of another kind
        return {}


def _holds_images(file: _ParquetFile, name: str) -> bool:
    """Return whether one of the first values is an image."""
    if not file.arrow.metadata.num_rows:
        return False
    try:
        values = [
            value.as_py() for batch in islice(file.batches(INSPECTED_ROWS, columns=[name]), 1) for value in batch[0]
        ]
    except file.errors:
        return False
    found = [value.get("bytes") if isinstance(value, dict) else value for value in values]
    return any(image_ending(value) for value in found if value)


def _struct_fields(kind: Any) -> list[str]:
    return [kind.field(number).name for number in range(kind.num_fields)]


def _is_binary(types: Any, kind: Any) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def _has_binary(types: Any, kind: Any) -> bool:
    """Return whether a nested type holds bytes."""
    return _is_binary(types, kind) or any(
        _has_binary(types, kind.field(number).type) for number in range(getattr(kind, "num_fields", 0))
    )


def _numbers(value: Any) -> Any:
    """Return a list of numbers as an array of their own type; anything else as a Python value."""
    values = getattr(value, "values", None)
    return value.as_py() if values is None or values.null_count else values.to_numpy(zero_copy_only=False)

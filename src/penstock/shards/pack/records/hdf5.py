"""Reads HDF5 files whose datasets have one entry per sample: of images as files or pixels, labels, and others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Self

import numpy as np

from penstock.core.sample import Sample
from penstock.errors import SampleError, SettingError
from penstock.shards.pack.options import Role
from penstock.shards.pack.records.columns import (
    MAX_VALUE_BYTES,
    FoundColumn,
    Kind,
    StatedColumns,
    assign_roles,
    image_ending,
    is_image_shape,
    record_parts,
)
from penstock.shards.pack.records.reader import (
    ListedRecords,
    Parts,
    RecordReader,
    check_count,
    damaged_file,
    damaged_record,
    file_binding,
    import_library,
    raise_if_disk_failed,
    record_index,
)

BATCH_BYTES = 16 << 20
"""Bytes of the entries that are read at once."""
_ERRORS = (OSError, RuntimeError, ValueError, KeyError, TypeError, SystemError)
"""The errors that h5py raises for what it cannot read."""
_ENDS_IN_ZEROS = (".bmp", ".tif", ".pgm", ".ppm", ".webp")
"""Image files that may end in zeros, which strings of fixed length do not keep."""


@dataclass(frozen=True)
class Hdf5Reader(RecordReader):
    """Reads the entries of several datasets of the same length side by side."""

    format_name = "HDF5"
    library = ("h5py", "hdf5")

    @classmethod
    def open(cls, paths: Sequence[str], columns: StatedColumns) -> Self:
        """Return the reader, with the datasets of the first file; all must have as many entries as the images."""
        with _Hdf5File(paths[0]) as file:
            found = [file.found_column(name) for name in file.names]
            stated = [name for name, _ in columns]
            usable = [column for column in found if not column.refusal and (not stated or column.name in stated)]
            main = next((column.name for column in usable if column.kind == "image"), None)
            if main is None and usable:
                main = usable[0].name
            found = [column if main is None else file.with_length_checked(column, main) for column in found]
        if not found:
            raise SettingError("has no datasets", shard=paths[0], stage="pack")
        return cls(assign_roles(found, columns, paths[0]))

    def list_records(self, path: str) -> ListedRecords:
        """Return the entries; the size of one is that of its numbers, or a share of the file."""
        with _Hdf5File(path) as file:
            lengths = {len(file.dataset(column.name)) for column in self.columns}
            if len(lengths) != 1:
                raise damaged_file(f"has datasets of different lengths: {sorted(lengths)}", path)
            (count,) = lengths
            size = self._bytes_per_record(file, count)
            check_count(count, path)
        return ListedRecords(record_index(path, np.arange(count), np.full(count, size, np.int64)))

    def read(self, path: str, samples: Sequence[Sample]) -> Iterator[Parts | SampleError]:
        """Yield the parts of each record; neighbours are read together."""
        rows = [sample.parts[0].offset for sample in samples]
        with _Hdf5File(path) as file:
            size = self._bytes_per_record(file, len(file.dataset(self.columns[0].name)))
            for first, last in _runs(rows, max(1, BATCH_BYTES // size)):
                yield from self._read_run(file, first, last)

    def _read_run(self, file: _Hdf5File, first: int, last: int) -> Iterator[Parts | SampleError]:
        try:
            entries = {column.name: file.entries(column.name, first, last) for column in self.columns}
        except SampleError as error:
            if last - first == 1:
                yield error
            else:  # read them one by one, to find the damaged ones
                for row in range(first, last):
                    yield from self._read_run(file, row, row + 1)
            return
        for number in range(last - first):
            try:
                values = {column.name: _value(entries[column.name][number], column.role) for column in self.columns}
                yield record_parts(self.columns, values)
            except SampleError as error:
                yield error

    def _bytes_per_record(self, file: _Hdf5File, count: int) -> int:
        """Return the bytes of the numbers of a record; entries of variable length get a share of the file."""
        datasets = [file.dataset(column.name) for column in self.columns]
        share = file_binding(file.path).size // max(1, count)
        return max(1, sum(share if dataset.dtype.hasobject else _entry_bytes(dataset) for dataset in datasets))


class _Hdf5File:
    """An open file; what the library raises for a damaged one becomes an error."""

    def __init__(self, path: str) -> None:
        self._library = import_library("h5py", "hdf5")
        self.path = path
        links: list[tuple[str, Any]] = []
        try:
            self._file = self._library.File(path, "r", locking=False)
            self._file.visititems_links(lambda name, link: links.append((name, link)))
        except _ERRORS as error:
            raise_if_disk_failed(error, path)
            raise damaged_file(f"cannot be read as HDF5: {error.__cause__ or error}", path) from error
        self.names = [name for name, link in links if not self._is_group(name, link)]
        """Names of all datasets, and of what may be one: links, which are not followed, and damaged objects."""

    def _is_group(self, name: str, link: Any) -> bool:
        """Return whether a name is that of a group, or of a data type, which holds no entries either."""
        if not isinstance(link, self._library.HardLink):
            return False
        try:
            return self._file.get(name, getclass=True) is not self._library.Dataset
        except _ERRORS:
            return False

    def dataset(self, name: str) -> Any:
        """Return an open dataset; a ShardError if the file has none of this name, or one of another kind."""
        column = self.found_column(name) if name in self.names else FoundColumn(name, "other", refusal="does not exist")
        if column.refusal:
            raise damaged_file(f"cannot be packed: dataset {name!r} {column.refusal}", self.path)
        return self._file[name]

    def found_column(self, name: str) -> FoundColumn:
        """Return a dataset as a column."""
        try:
            return self._found_column(name)
        except _ERRORS as error:
            raise_if_disk_failed(error, self.path)
            return FoundColumn(name, "other", refusal=f"cannot be read: {error}")

    def _found_column(self, name: str) -> FoundColumn:
        if not isinstance(self._file.get(name, getlink=True), self._library.HardLink):
            return FoundColumn(name, "other", refusal="is a link, and links are not followed")
        dataset = self._file[name]
        if dataset.external or dataset.is_virtual:
            return FoundColumn(name, "other", refusal="lies in other files, which are not opened")
        if not dataset.shape:
            return FoundColumn(name, "other", refusal="has no entry per sample")
        if (
            _entry_bytes(dataset) > MAX_VALUE_BYTES
            or prod(dataset.chunks or ()) * dataset.dtype.itemsize > MAX_VALUE_BYTES
        ):
            return FoundColumn(name, "other", refusal=f"has entries or chunks of more than {MAX_VALUE_BYTES} bytes")
        missing = self._missing_filter(dataset)
        if missing is not None:
            return FoundColumn(
                name, "other", refusal=f"is stored with the filter {missing}, whose plugin is not installed"
            )
        kind = self._kind(dataset)
        return FoundColumn(name, kind or "other", refusal=None if kind else f"has the type {dataset.dtype}")

    def _missing_filter(self, dataset: Any) -> str | None:
        """Return the name of a compression or another filter that the library lacks; None if it can read the data."""
        properties = dataset.id.get_create_plist()
        filters = [properties.get_filter(number) for number in range(properties.get_nfilters())]
        missing = ((code, name) for code, _, _, name in filters if not self._library.h5z.filter_avail(code))
        return next((name.decode("utf-8", "replace") or str(code) for code, name in missing), None)

    def _kind(self, dataset: Any) -> Kind | None:
        """Return the kind of a dataset's entries; None if no column has it."""
        dtype, shape = dataset.dtype, dataset.shape[1:]
        entries = self._library.check_vlen_dtype(dtype)
        if self._library.check_string_dtype(dtype) is not None:
            return ("image" if self._begins_with_image(dataset) else "string") if not shape else "other"
        if entries is not None:
            if shape or entries.kind not in "biufc":
                return None
            return "array" if entries != np.uint8 else "image" if self._begins_with_image(dataset) else "bytes"
        if dtype.kind == "V" and dtype.names is None and not dtype.subdtype and not shape:
            return "image" if self._begins_with_image(dataset) else "bytes"
        if dtype.kind not in "biuf" or dtype.itemsize > 8:
            return None
        if prod(shape) == 1:
            return "integer" if dtype.kind in "iu" else "other"
        return "image" if is_image_shape(dtype, shape) else "array"

    def _begins_with_image(self, dataset: Any) -> bool:
        try:
            value = _value(dataset[0], "image") if len(dataset) else b""
        except (SampleError, *_ERRORS):
            return False
        return isinstance(value, bytes) and image_ending(value) is not None

    def with_length_checked(self, column: FoundColumn, main: str) -> FoundColumn:
        """Return the column, refused if it has not as many entries as the main one."""
        if column.refusal:
            return column
        count, wanted = len(self._file[column.name]), len(self._file[main])
        return (
            column if count == wanted else replace(column, refusal=f"has {count} entries where {main!r} has {wanted}")
        )

    def entries(self, name: str, first: int, last: int) -> Any:
        """Return the entries of a dataset as an array; a SampleError if they cannot be read."""
        try:
            return self._file[name][first:last]
        except _ERRORS as error:
            raise_if_disk_failed(error, self.path)
            raise damaged_record(f"dataset {name!r} cannot be read: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _entry_bytes(dataset: Any) -> int:
    return int(prod(dataset.shape[1:]) * dataset.dtype.itemsize)


def _runs(rows: Sequence[int], longest: int) -> Iterator[tuple[int, int]]:
    """Yield the first row, and the one behind the last, of each run of neighbours."""
    first = last = rows[0] if rows else 0
    for row in rows:
        if row != last or row - first >= longest:
            yield first, last
            first = row
        last = row + 1
    if rows:
        yield first, last


def _value(entry: Any, role: Role) -> Any:
    """Return one entry in the form that `record_parts` takes."""
    if isinstance(entry, np.void):
        return entry.tobytes()
    if isinstance(entry, np.bytes_) and (
        role == "bytes" or (role == "image" and image_ending(entry) in _ENDS_IN_ZEROS)
    ):
        raise SampleError("is a string of fixed length, which does not keep zeros at its end", stage="read")
    if isinstance(entry, bytes):
        return bytes(entry)
    if isinstance(entry, np.ndarray) and role in ("image", "bytes") and entry.ndim == 1 and entry.dtype == np.uint8:
        return entry.tobytes()
    if isinstance(entry, np.ndarray) and role in ("label", "text") and entry.size == 1:
        return entry.reshape(())[()]
    return entry

"""Reads LMDB: databases of parts with keys such as `0001.jpg`, or of images with any keys."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self
from urllib.parse import quote, unquote_to_bytes

import numpy as np

from penstock.core.sample import Sample
from penstock.errors import SampleError, SettingError
from penstock.shards.index import OpenedShard, build_index
from penstock.shards.pack.records.columns import StatedColumns, image_ending
from penstock.shards.pack.records.reader import (
    ListedRecords,
    Parts,
    RecordReader,
    damaged_file,
    damaged_record,
    file_binding,
    import_library,
    record_index,
)
from penstock.shards.tar import TarMembers

INSPECTED_KEYS = 4096
"""First keys of the first database that decide whether keys are names of parts."""
_PART_NAME = re.compile(rb".*[^/]\.[A-Za-z][A-Za-z0-9]{0,7}", re.DOTALL)


@dataclass(frozen=True)
class LmdbReader(RecordReader):
    """Reads values by their keys. If most keys end like file names, the values are parts, else they are images."""

    keys_are_names: bool

    format_name = "LMDB"
    library = ("lmdb", "lmdb")

    @property
    def named_parts(self) -> bool:
        """Whether the keys are names of parts."""
        return self.keys_are_names

    @classmethod
    def open(cls, paths: Sequence[str], columns: StatedColumns) -> Self:
        """Return the reader for names or for images, by the first keys."""
        if columns:
            raise SettingError("an LMDB has no columns", shard=paths[0], stage="pack", advice="Leave --column out.")
        with _Database(paths[0]) as database:
            keys = list(islice(database.keys(), INSPECTED_KEYS))
        return cls((), 2 * sum(_PART_NAME.fullmatch(key) is not None for key in keys) >= len(keys) > 0)

    def list_records(self, path: str) -> ListedRecords:
        """Return the values with their sizes, in the order of the keys."""
        names: list[str] = []
        sizes = array("q")
        with _Database(path) as database:
            for key, size in database.sizes():
                names.append(_name_of(key))
                sizes.append(size)
        offsets = array("q", range(len(names)))
        if not self.keys_are_names:
            return ListedRecords(record_index(path, np.array(offsets), np.array(sizes), names))
        binding = file_binding(path)
        members = TarMembers(names, offsets, sizes)
        return ListedRecords(build_index(members, OpenedShard(binding, None, binding.size)))

    def read(self, path: str, samples: Sequence[Sample]) -> Iterator[Parts | SampleError]:
        """Yield the values of each sample."""
        with _Database(path) as database:
            for sample in samples:
                try:
                    values = [(part.suffix, database.value(sample.key + part.suffix)) for part in sample.parts]
                    yield values if self.keys_are_names else [(_image_suffix(values[0][1]), values[0][1])]
                except SampleError as error:
                    yield error


def _image_suffix(value: bytes) -> str:
    ending = image_ending(value)
    if ending is None:
        raise SampleError(
            f"the value is no image: it begins with {value[:8].hex(' ') or 'nothing'}",
            stage="read",
            advice="Penstock reads values that are image files; pickles and other encodings of objects are not read",
        )
    return ending


def _name_of(key: bytes) -> str:
    """Return a key as a name; a key that is no plain path is escaped, so that `unquote_to_bytes` gives it back."""
    try:
        name = key.decode()
    except UnicodeDecodeError:
        return quote(key, safe="")
    plain = name.isprintable() and "%" not in name and not {"", ".", ".."} & set(name.split("/"))
    return name if plain else quote(key, safe="")


class _Database:
    """The main database of an open file. It is opened without a lock, so that nothing is written beside it."""

    def __init__(self, path: str) -> None:
        library = import_library("lmdb", "lmdb")
        self._error: type[Exception] = library.Error
        self._path = path
        try:
            self._environment: Any = library.open(
                path, subdir=False, readonly=True, lock=False, create=False, readahead=False, max_spare_txns=0
            )
        except (self._error, OSError) as error:
            raise damaged_file(f"cannot be opened as LMDB: {error}", path) from error
        pages, page_bytes = self._environment.info()["last_pgno"] + 1, self._environment.stat()["psize"]
        if pages * page_bytes > file_binding(path).size:  # reading a page behind the end would kill the process
            self._environment.close()
            raise damaged_file(f"is cut short: it lacks some of its {pages} pages", path)
        self._transaction = self._environment.begin(buffers=True)
        if self._environment.open_db(None, txn=self._transaction).flags(self._transaction)["dupsort"]:
            self._environment.close()
            raise SettingError("has several values for a key, which Penstock does not read", shard=path, stage="pack")

    def keys(self) -> Iterator[bytes]:
        """Yield all keys, in their order."""
        return (key for key, _ in self.sizes())

    def sizes(self) -> Iterator[tuple[bytes, int]]:
        """Yield all keys, and the bytes of their values."""
        try:
            for key, value in self._transaction.cursor():
                yield bytes(key), len(value)
        except self._error as error:
            raise damaged_file(f"is damaged: {error}", self._path) from error

    def value(self, name: str) -> bytes:
        """Return the value of the key with this name."""
        try:
            value = self._transaction.get(unquote_to_bytes(name))
        except self._error as error:
            raise damaged_record(f"cannot be read: {error}") from error
        if value is None:
            raise damaged_record("no longer exists")
        return bytes(value)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._transaction.abort()
        self._environment.close()

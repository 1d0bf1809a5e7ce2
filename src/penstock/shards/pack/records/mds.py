"""Reads MosaicML's MDS: `index.json`, and shards of samples whose columns have declared encodings.

A shard is the number of samples, the offset of each sample and of the end (all uint32), and the samples. A sample is
the sizes of its columns of variable size (uint32 each), and the values of all columns. Pickled values are refused.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import Sample
from penstock.errors import SampleError, SettingError
from penstock.shards.codecs import zstd
from penstock.shards.guards.jpeg import MAX_PIXELS
from penstock.shards.pack.records.columns import (
    MAX_VALUE_BYTES,
    FoundColumn,
    Kind,
    StatedColumns,
    assign_roles,
    image_ending,
    record_parts,
)
from penstock.shards.pack.records.reader import (
    ListedRecords,
    Parts,
    RecordReader,
    damaged_file,
    damaged_record,
    record_index,
)
from penstock.storage.local import LocalFile

INDEX_NAME = "index.json"
MAX_INDEX_BYTES = 256 << 20
"""Longest `index.json`, about half a million shards."""
MAX_INFLATED_BYTES = 1 << 30
"""Largest compressed shard after decompression; the writer's default are 64 MiB."""
_COMPRESSED = {".zstd": "zstd", ".gz": "gz"}
_OTHER_COMPRESSIONS = (".br", ".bz2", ".snappy")
_UINT32 = struct.Struct("<I")
_NUMBERS = {
    "int": "<i8",
    **{f"{sign}int{8 * size}": f"<{sign[:1] or 'i'}{size}" for sign in ("u", "") for size in (1, 2, 4, 8)},
    **{f"float{8 * size}": f"<f{size}" for size in (2, 4, 8)},
}
"""dtype of each encoding that is one number."""
_KINDS: dict[str, Kind] = {
    "str": "string",
    "str_int": "integer",
    "str_float": "other",
    "str_decimal": "string",
    "json": "other",
    "jpeg": "image",
    "jpeg_array": "image",
    "jpegarray": "image",
    "png": "image",
    "pil": "image",
    **{encoding: "integer" if "int" in encoding else "other" for encoding in _NUMBERS},
}
_ARRAY_DTYPES = {
    bits + kind: f"{name}{bits}"
    for bits in (8, 16, 32, 64)
    for kind, name in enumerate(("uint", "int", "float"))
    if (bits, name) != (8, "float")
}
"""dtype of an array by the number that stands for it in a value."""
_PIL_MODES = {"L": ("u1", 1), "P": ("u1", 1), "RGB": ("u1", 3), "RGBA": ("u1", 4), "I;16": ("<u2", 1)}
"""dtype and channels of the modes of raw images. MDS does not store the palette of mode P."""


class _File(msgspec.Struct):
    basename: str
    bytes: int


class _Shard(msgspec.Struct):
    """The description of a shard. Field names are keys of the JSON."""

    format: str
    version: int
    samples: int
    column_names: list[str]
    column_encodings: list[str]
    column_sizes: list[int | None]
    raw_data: _File
    zip_data: _File | None = None


class _Index(msgspec.Struct):
    version: Literal[2]
    shards: list[_Shard]


@dataclass(frozen=True)
class MdsReader(RecordReader):
    """Reads the samples of MDS shards; a compressed shard is decompressed as a whole."""

    names: tuple[str, ...]
    """All columns of a sample, in the order in which their values are stored."""
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]
    """Bytes of the values of each column; None where every value states its own."""

    format_name = "MDS"
    byte_offsets = True

    @classmethod
    def open(cls, paths: Sequence[str], columns: StatedColumns) -> Self:
        """Return the reader, with the columns of the first shard, which all others must have too."""
        shards = read_index(os.path.dirname(paths[0]))
        first = shards[0]
        for shard in shards:
            if _columns_of(shard) != _columns_of(first):
                raise damaged_file("has other columns than the first shard", shard.raw_data.basename)
        names, encodings, sizes = _columns_of(first)
        reader = cls((), names, encodings, sizes)
        found = [reader._found_column(paths[0], name) for name in names]
        return cls(assign_roles(found, columns, paths[0]), names, encodings, sizes)

    def list_records(self, path: str) -> ListedRecords:
        """Return the samples of a shard, by the offsets at its beginning."""
        with _open_shard(path) as shard:
            offsets = _read_offsets(shard, path)
        return ListedRecords(record_index(path, offsets[:-1], np.diff(offsets)))

    def read(self, path: str, samples: Sequence[Sample]) -> Iterator[Parts | SampleError]:
        """Yield the parts of each sample."""
        encodings = dict(zip(self.names, self.encodings, strict=True))
        with _open_shard(path) as shard:
            for sample in samples:
                part = sample.parts[0]
                try:
                    values = self._values(shard.read_at(part.offset, part.length))
                    names = [column.name for column in self.columns]
                    decoded = {name: _decode(encodings[name], values[name]) for name in names}
                    yield record_parts(self.columns, decoded)
                except SampleError as error:
                    yield error

    def _values(self, data: bytes) -> dict[str, bytes]:
        """Return the encoded value of each column of a sample."""
        position = 4 * self.sizes.count(None)
        if len(data) < position:
            raise damaged_record("the sample is too short for the sizes of its columns")
        stated = (size for (size,) in _UINT32.iter_unpack(data[:position]))
        values = {}
        for name, size in zip(self.names, self.sizes, strict=True):
            size = next(stated) if size is None else size
            values[name] = data[position : position + size]
            position += size
        if position != len(data):
            raise damaged_record(f"the columns take {position} bytes of a sample of {len(data)} bytes")
        return values

    def _found_column(self, path: str, name: str) -> FoundColumn:
        encoding = self.encodings[self.names.index(name)]
        if encoding == "pkl":
            return FoundColumn(name, "bytes", refusal="is pickled: reading a pickle can run any code, so none is read")
        if encoding.partition(":")[0] == "ndarray":
            return FoundColumn(name, "array")
        if encoding == "bytes":
            return FoundColumn(name, "image" if image_ending(self._first_value(path, name)) else "bytes")
        if encoding not in _KINDS:
            return FoundColumn(name, "bytes", refusal=f"has the encoding {encoding!r}, which Penstock does not read")
        return FoundColumn(name, _KINDS[encoding])

    def _first_value(self, path: str, name: str) -> bytes:
        """Return the value of a column in the first sample; nothing if it cannot be read."""
        with _open_shard(path) as shard:
            offsets = _read_offsets(shard, path).tolist()
            try:
                return self._values(shard.read_at(offsets[0], offsets[1] - offsets[0]))[name] if offsets[1:] else b""
            except SampleError:
                return b""


# -- the index and the shards ------------------------------------------------------------------------------------------


def read_index(folder: str) -> list[_Shard]:
    """Return the descriptions of all shards of a dataset; an index that cannot be used is an error."""
    path = os.path.join(folder, INDEX_NAME)
    with LocalFile(path) as file:
        if file.size > MAX_INDEX_BYTES:
            raise damaged_file(f"is an index of {file.size} bytes, more than {MAX_INDEX_BYTES}", path)
        data = file.read_at(0, file.size)
    try:
        shards = msgspec.json.decode(data, type=_Index).shards
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise damaged_file(f"is no index of MDS shards: {error}", path) from error
    for shard in shards:
        names = [file.basename for file in (shard.raw_data, shard.zip_data) if file is not None]
        odd = next((name for name in names if name in ("", ".", "..") or "/" in name or "\\" in name), None)
        columns = (shard.column_names, shard.column_encodings, shard.column_sizes)
        if shard.format != "mds" or shard.version != 2:
            raise damaged_file(f"lists shards of the format {shard.format!r}, version {shard.version}", path)
        if odd is not None:
            raise damaged_file(f"names a shard {odd!r}, which is no file of this folder", path)
        if len({len(column) for column in columns}) > 1 or any((size or 0) < 0 for size in shard.column_sizes):
            raise damaged_file("contradicts itself about the columns", path)
    if not shards:
        raise SettingError("lists no shards", shard=path, stage="pack")
    return shards


def shard_files(folder: str) -> dict[str, int]:
    """Return the path of each shard, of its uncompressed form if that exists, and its number of samples."""
    files = {}
    for shard in read_index(folder):
        names = [file.basename for file in (shard.raw_data, shard.zip_data) if file is not None]
        paths = [os.path.join(folder, name) for name in names]
        path = next(filter(os.path.isfile, paths), None)
        if path is None:
            raise damaged_file(f"lacks the shard {' or '.join(names)}, which its index lists", folder)
        files[path] = shard.samples
    return files


def _columns_of(shard: _Shard) -> tuple[tuple[str, ...], tuple[str, ...], tuple[int | None, ...]]:
    return tuple(shard.column_names), tuple(shard.column_encodings), tuple(shard.column_sizes)


class _InflatedShard:
    """The content of a compressed shard in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read_at(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _open_shard(path: str) -> LocalFile | _InflatedShard:
    compression = Path(path).suffix
    if compression in _OTHER_COMPRESSIONS:
        raise SettingError(
            f"is compressed as {compression}, which Penstock does not read",
            shard=path,
            stage="pack",
            advice="Decompress the shards: read the dataset once with StreamingDataset",
        )
    if compression not in _COMPRESSED:
        return LocalFile(path)
    with LocalFile(path) as file:
        data = file.read_at(0, min(file.size, MAX_INFLATED_BYTES))
    try:
        return _InflatedShard(zstd.decompress(data, MAX_INFLATED_BYTES) if compression == ".zstd" else _gunzip(data))
    except (SampleError, OSError, EOFError, zlib.error) as error:
        raise damaged_file(f"cannot be decompressed: {getattr(error, 'reason', error)}", path) from error


def _gunzip(data: bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        inflated = file.read(MAX_INFLATED_BYTES + 1)
    if len(inflated) > MAX_INFLATED_BYTES:
        raise SampleError(f"it has more than {MAX_INFLATED_BYTES} bytes")
    return inflated


def _read_offsets(shard: LocalFile | _InflatedShard, path: str) -> NDArray[np.int64]:
    """Return the offset of each sample and of the end of the last one."""
    head = shard.read_at(0, _UINT32.size)
    count = _UINT32.unpack(head)[0] if len(head) == _UINT32.size else -1
    begin = _UINT32.size * (count + 2)
    if count < 0 or begin > shard.size:
        raise damaged_file(f"states {count} samples in {shard.size} bytes", path)
    offsets = np.frombuffer(shard.read_at(_UINT32.size, begin - _UINT32.size), "<u4").astype(np.int64)
    lengths = np.diff(offsets)
    if offsets[0] < begin or offsets[-1] != shard.size or ((lengths < 0) | (lengths > MAX_VALUE_BYTES)).any():
        raise damaged_file(f"has samples at impossible offsets, or not the {offsets[-1]} bytes that it states", path)
    return offsets


# -- values ------------------------------------------------------------------------------------------------------------


def _decode(encoding: str, data: bytes) -> Any:
    """Return a value in the form that `record_parts` takes; images and text stay encoded."""
    name, _, parameters = encoding.partition(":")
    try:
        if name in _NUMBERS:
            return np.frombuffer(data, _NUMBERS[name])[0].item()
        if name == "ndarray":
            return _decode_array(parameters, data)
        return _DECODERS[name](data) if name in _DECODERS else data
    except (ValueError, IndexError, KeyError, RecursionError) as error:
        raise damaged_record(f"a value is no {encoding}: {error}") from error


def _decode_array(parameters: str, data: bytes) -> NDArray[Any]:
    """Return an array; its dtype and its shape are parameters of the encoding, or lead the value."""
    dtype, _, shape_text = parameters.partition(":")
    position = 0
    if not dtype:
        dtype, position = _ARRAY_DTYPES[data[0]], 1
    if shape_text:
        shape = [int(length) for length in shape_text.split(",")]
    else:
        dimensions, width = data[position] >> 2, 1 << (data[position] & 3)
        end = position + 1 + dimensions * width
        shape = np.frombuffer(data[position + 1 : end], f"<u{width}").tolist()
        position = end
    if dtype not in _ARRAY_DTYPES.values():
        raise ValueError(f"its dtype is {dtype!r}")
    array: NDArray[Any] = np.frombuffer(data, np.dtype(dtype).newbyteorder("<"), offset=position)
    return array.reshape(shape)


def _decode_pil(data: bytes) -> NDArray[Any]:
    """Return the pixels of a raw image: its width, height, length of the mode, mode and pixels."""
    width, height, length = np.frombuffer(data[:12], "<u4").tolist()
    mode = data[12 : 12 + length].decode()
    if mode not in _PIL_MODES:
        raise ValueError(f"its mode is {mode!r}")
    if width * height > MAX_PIXELS:
        raise ValueError(f"it has {width}×{height} pixels")
    dtype, channels = _PIL_MODES[mode]
    return np.frombuffer(data, dtype, offset=12 + length).reshape(height, width, channels)


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "str": bytes.decode,
    "str_int": int,
    "str_float": float,
    "str_decimal": bytes.decode,
    "json": json.loads,
    "pil": _decode_pil,
}
"""The encodings that are neither numbers, arrays nor bytes in the form of the part."""

"""The index on disk: a small sidecar that is checked before it is believed.

    8 bytes   magic, with the version
    4 bytes   CRC32 of all that follows
    8 bytes   length of the body, uncompressed
    rest      zstd(msgpack(_Body)): tables as lists, columns as little-endian bytes

An index is data from outside like any other: no pickle, sizes capped before allocation, and every offset checked
against the shard before use. It lies beside its shard, in a folder or in a bucket, or in the user's cache directory
where that is read-only.
"""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import deflate
import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.core.user_cache import cache_dir
from penstock.errors import IndexFileError, SampleError, StorageError
from penstock.shards.codecs import zstd
from penstock.shards.index import IndexBinding, ShardIndex
from penstock.shards.open_shard import Compression, compression_from_name
from penstock.shards.tar_header import TAR_BLOCK, as_header_rows, checksums_match, decode_names
from penstock.storage.local import LocalFile
from penstock.storage.object_store.fetch import ObjectVersion
from penstock.storage.object_store.remote_file import RemoteFile, read_object, write_object
from penstock.storage.object_store.url import is_remote

INDEX_MAGIC = b"PSTKIDX1"
INDEX_SUFFIX = ".pidx"
MAX_INDEX_BYTES = 4 << 30
"""About fifty million parts: no shard is that large, so a larger claim is a lie."""
INDEX_BYTES_ALWAYS_READ = 64 << 10
"""May be read of any index, however small its shard is."""
_INDEX_HEADER = struct.Struct("<8sIQ")


class _IndexBody(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    size: int
    mtime_ns: int
    compression: Compression | None
    data_length: int
    keys: list[str]
    suffixes: list[str]
    parts_per_sample: bytes
    suffix_ids: bytes
    offsets: bytes
    lengths: bytes
    crcs: bytes | None
    notes: list[tuple[str, int, str]]
    etag: str | None = None
    """Of a shard in an object store; files from before that have none."""


_DECODER = msgspec.msgpack.Decoder(_IndexBody)
"""Made here, once: threads that decode into a type for the first time together can crash msgspec (seen with 0.22.0)."""


def index_path_beside(shard: str | os.PathLike[str]) -> Path:
    """Where the index of a shard lies if its folder can be written."""
    return Path(os.fspath(shard) + INDEX_SUFFIX)


def index_path_in_cache(shard: str | os.PathLike[str]) -> Path:
    """Where it lies otherwise: named after the shard's absolute path."""
    path = os.fspath(shard) if is_remote(shard) else os.path.realpath(shard)
    return cache_dir("index") / (hashlib.sha256(os.fsencode(path)).hexdigest()[:32] + INDEX_SUFFIX)


def save_index(index: ShardIndex, shard: str | os.PathLike[str]) -> str | Path:
    """Write the sidecar, atomically, where it can be written; returns where."""
    data = encode_index(index)
    try:
        if is_remote(shard):
            write_object(os.fspath(shard) + INDEX_SUFFIX, data)
            return os.fspath(shard) + INDEX_SUFFIX
        return _write_atomically(index_path_beside(shard), data)
    except OSError:
        return _write_atomically(index_path_in_cache(shard), data)


def load_index(shard: str | os.PathLike[str], now: IndexBinding | None = None) -> ShardIndex | None:
    """The stored index, whatever shard state it describes; None if there is none; IndexFileError if it is bad.

    The folder may have become read-only with a bad or stale index in it: then the one in the cache counts, if
    that describes the shard as it is `now`.
    """
    most_bytes = MAX_INDEX_BYTES if now is None else _max_index_bytes(shard, now)
    other: ShardIndex | IndexFileError | None = None
    for place in (os.fspath(shard) + INDEX_SUFFIX, os.fspath(index_path_in_cache(shard))):
        found = _load_index_at(place, most_bytes)
        if isinstance(found, ShardIndex) and now in (None, found.binding):
            return found
        other = found if other is None else other
    if isinstance(other, IndexFileError):
        raise other
    return other


def _max_index_bytes(shard: str | os.PathLike[str], now: IndexBinding) -> int:
    """Of the index of a shard: a part takes 512 bytes of it and more, and less than eight times that in its index."""
    if compression_from_name(shard) is not None:
        return MAX_INDEX_BYTES
    return min(MAX_INDEX_BYTES, INDEX_BYTES_ALWAYS_READ + 8 * now.size)


def _load_index_at(path: str, most_bytes: int) -> ShardIndex | IndexFileError | None:
    """What lies there; None if nothing does."""
    try:
        if is_remote(path):
            return decode_index(read_object(path, most_bytes), most_bytes)
        with LocalFile(path) as file:
            if file.size > most_bytes:
                raise IndexFileError(f"index file has {file.size} bytes")
            return decode_index(file.read_at(0, file.size), most_bytes)
    except StorageError:
        return None
    except IndexFileError as error:
        return error.at(shard=path, stage="index")


def encode_index(index: ShardIndex) -> bytes:
    """The file's bytes."""
    body = msgspec.msgpack.encode(
        _IndexBody(
            size=index.binding.size,
            mtime_ns=index.binding.mtime_ns,
            compression=index.compression,
            data_length=index.data_length,
            keys=index.keys,
            suffixes=index.suffixes,
            parts_per_sample=_column_bytes(np.diff(index.starts), "<u4"),
            suffix_ids=_column_bytes(index.suffix_ids, "<u4"),
            offsets=_column_bytes(index.offsets, "<i8"),
            lengths=_column_bytes(index.lengths, "<i8"),
            crcs=None if index.crcs is None else _column_bytes(index.crcs, "<u4"),
            notes=index.notes,
            etag=index.binding.etag,
        )
    )
    packed = zstd.compress(body)
    length = struct.pack("<Q", len(body))
    return INDEX_MAGIC + struct.pack("<I", deflate.crc32(length + packed)) + length + packed


def decode_index(data: bytes, most_bytes: int = MAX_INDEX_BYTES) -> ShardIndex:
    """Parse and check; anything odd is an IndexFileError."""
    if len(data) < _INDEX_HEADER.size or data[:7] != INDEX_MAGIC[:7]:
        raise IndexFileError("is not an index file")
    magic, crc, length = _INDEX_HEADER.unpack_from(data)
    if magic != INDEX_MAGIC:
        raise IndexFileError(f"index version {magic[7:]!r} is not the one this Penstock reads ({INDEX_MAGIC[7:]!r})")
    if deflate.crc32(data[12:]) != crc:
        raise IndexFileError("index checksum does not match")
    if length > most_bytes:
        raise IndexFileError(f"index claims {length} bytes")
    try:
        body = _DECODER.decode(zstd.decompress(data[_INDEX_HEADER.size :], max_length=length))
    except (msgspec.MsgspecError, SampleError, UnicodeDecodeError) as error:
        raise IndexFileError(f"index cannot be parsed: {error}") from error
    return _validate_body(body)


def _validate_body(body: _IndexBody) -> ShardIndex:
    """Columns of equal length, numbers in range: what the rest of the house relies on."""
    counts = _parse_column(body.parts_per_sample, "<u4")
    offsets, lengths = _parse_column(body.offsets, "<i8"), _parse_column(body.lengths, "<i8")
    suffix_ids = _parse_column(body.suffix_ids, "<u4")
    crcs = None if body.crcs is None else _parse_column(body.crcs, "<u4")
    parts = int(counts.sum())
    columns = [offsets, lengths, suffix_ids] + ([] if crcs is None else [crcs])
    sound = (
        len(counts) == len(body.keys)
        and all(len(column) == parts for column in columns)
        and 0 <= body.data_length < 1 << 63
        and (body.compression is not None or body.data_length == body.size)
        and body.size >= 0
        and bool((counts > 0).all())
        and bool((suffix_ids < len(body.suffixes)).all())
        and bool(((offsets >= 0) & (lengths >= 0)).all())
        # written so that no sum can overflow
        and bool((lengths <= body.data_length - np.minimum(offsets, body.data_length)).all())
        and len(set(body.keys)) == len(body.keys)
    )
    if not sound:
        raise IndexFileError("index contradicts itself")
    return ShardIndex(
        binding=IndexBinding(body.size, body.mtime_ns, body.etag),
        compression=body.compression,
        data_length=body.data_length,
        keys=body.keys,
        suffixes=body.suffixes,
        starts=np.concatenate(([0], np.cumsum(counts, dtype=np.int64))).astype(np.int64),
        suffix_ids=suffix_ids,
        offsets=offsets,
        lengths=lengths,
        crcs=crcs,
        notes=body.notes,
    )


def _column_bytes(column: NDArray[Any], dtype: str) -> bytes:
    return np.ascontiguousarray(column, dtype).tobytes()


def _parse_column(data: bytes, dtype: str) -> NDArray[Any]:
    if len(data) % np.dtype(dtype).itemsize:
        raise IndexFileError("index column has a ragged end")
    return np.frombuffer(data, dtype)


def _write_atomically(path: Path, data: bytes) -> Path:
    """Write under another name, then rename: a reader sees the old file or the new one, never half of one."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


COMPARED_HEADERS = 16
"""Headers that are compared: the first, the last, and some between."""


def may_describe(index: ShardIndex, now: IndexBinding) -> bool:
    """Whether it speaks of a file that may have become this object."""
    made_elsewhere = index.binding.etag is None and index.binding != now
    plain = index.compression is None and index.crcs is not None and index.parts > 0
    return made_elsewhere and plain and index.binding.size == now.size


def adopt_index(path: str, index: ShardIndex, now: IndexBinding) -> ShardIndex | None:
    """The index, bound to the object; None if the object's headers are not those that it speaks of."""
    by_offset = np.argsort(index.offsets, kind="stable")
    chosen = by_offset[np.unique(np.linspace(0, index.parts - 1, COMPARED_HEADERS).astype(np.int64))].tolist()
    memory = memoryview(bytearray(len(chosen) * TAR_BLOCK))
    headers = [memory[number * TAR_BLOCK : (number + 1) * TAR_BLOCK] for number in range(len(chosen))]
    places = [(int(index.offsets[part]) - TAR_BLOCK, header) for part, header in zip(chosen, headers, strict=True)]
    if any(offset < 0 for offset, _ in places):
        return None
    RemoteFile(path, ObjectVersion(now.size, now.etag, now.mtime_ns)).read_all(places)
    same = all(_header_matches(index, part, bytes(header)) for part, header in zip(chosen, headers, strict=True))
    return replace(index, binding=now) if same else None


def _header_matches(index: ShardIndex, part: int, header: bytes) -> bool:
    """Name and length; a name too long for one header is not looked for."""
    sound = bool(checksums_match(as_header_rows(header))[0])
    length = header[124:135]
    return (
        sound
        and decode_names(as_header_rows(header))[0] == index.name(part)
        and length.isdigit()
        and int(length, 8) == index.lengths[part]
    )

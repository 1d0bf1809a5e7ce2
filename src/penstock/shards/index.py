"""The index of one shard: for every sample its key and the byte range of each part, in memory and as a sidecar file.

`ShardIndex` is made of columns instead of objects, so a shard of a million samples is six arrays. Parts are stored
sample after sample (`starts[i]:starts[i + 1]` are the parts of sample i), and samples in the order in which their first
part lies in the shard.

The sidecar file:

    8 bytes   magic, with the version
    4 bytes   CRC32 of all that follows
    8 bytes   length of the body, uncompressed
    rest      zstd(msgpack(_IndexBody)): tables as lists, columns as little-endian bytes

A sidecar is untrusted data: no pickle, sizes are capped before allocation, and every offset is checked against the
shard before use. It lies beside its shard, in a folder or in a bucket, or in the user's cache directory if that place
is read-only. `scan.py` decides when a stored index is used.
"""

from __future__ import annotations

import hashlib
import os
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self

import deflate
import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import Part, Sample
from penstock.core.user_cache import cache_dir
from penstock.core.write_file import replace_file
from penstock.errors import IndexFileError, IndexVersionError, SampleError, StorageError
from penstock.shards.codecs import zstd
from penstock.shards.guards.buffer import Buffer
from penstock.shards.open_shard import Compression, compression_from_name
from penstock.shards.pairing import RequiredPart, find_ignored, may_split_otherwise, split_names
from penstock.shards.tar import IGNORED, TarMembers
from penstock.shards.tar_header import TAR_BLOCK
from penstock.storage.local import LocalFile
from penstock.storage.object_store.remote_file import read_object, write_object
from penstock.storage.object_store.url import is_remote


class ShardIdentity(Protocol):
    """The attributes of an open shard by which its version is recognised."""

    path: str
    size: int
    mtime_ns: int
    etag: str | None


@dataclass(frozen=True, slots=True)
class IndexBinding:
    """The version of a shard that an index describes; a shard with another binding has changed."""

    size: int
    mtime_ns: int
    """Modification time; 0 if there is an ETag."""
    etag: str | None = None
    """ETag of an object in a store."""

    @classmethod
    def of(cls, shard: ShardIdentity) -> Self:
        """Return the binding of an open shard."""
        return cls(shard.size, shard.mtime_ns, shard.etag)

    def check(self, shard: ShardIdentity) -> None:
        """Raise StorageError if an open shard is another version."""
        if IndexBinding.of(shard) != self:
            raise StorageError("has changed since it was indexed", shard=shard.path, stage="read", advice="Start again")


@dataclass(frozen=True)
class ShardIndex:
    """The byte range of every part of every sample of a shard."""

    binding: IndexBinding
    compression: Compression | None
    data_length: int
    """Length of the tar itself: the size of the file, or of the uncompressed stream."""
    keys: list[str]
    suffixes: list[str]
    starts: NDArray[np.int64]
    """Sample i has the parts starts[i] to starts[i + 1]; one entry more than there are samples."""
    suffix_ids: NDArray[np.uint32]
    """The position of each part's suffix in `suffixes`."""
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    crcs: NDArray[np.uint32] | None
    """CRC32 of each part; None if the writer of the index did not compute them."""
    other_members: list[tuple[str, int, str]]
    """(name, offset, description) of members that belong to no sample: devices, directories, ignored files."""
    unreadable: dict[int, str]
    """Why a part's data cannot be read, by the part's offset. Such parts have length 0."""

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def part_count(self) -> int:
        """Number of parts of all samples together."""
        return len(self.offsets)

    def sample(self, number: int) -> Sample:
        """Return one sample as an object."""
        first, last = int(self.starts[number]), int(self.starts[number + 1])
        return Sample(self.keys[number], tuple(self.part(part) for part in range(first, last)))

    def part(self, number: int) -> Part:
        """Return one part as an object, by its position in the columns."""
        crc = None if self.crcs is None else int(self.crcs[number])
        suffix = self.suffixes[int(self.suffix_ids[number])]
        offset, length = int(self.offsets[number]), int(self.lengths[number])
        return Part(suffix, offset, length, crc, None if length else self.unreadable.get(offset))

    @cached_property
    def sample_ids(self) -> NDArray[np.int64]:
        """The number of each part's sample."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.starts))

    @cached_property
    def is_unreadable(self) -> NDArray[np.bool_]:
        """Whether each part's data cannot be read."""
        unreadable: NDArray[np.bool_] = (self.lengths == 0) & np.isin(self.offsets, list(self.unreadable))
        return unreadable

    def member_name(self, number: int) -> str:
        """Return the member name of a part, by its position in the columns."""
        return self.keys[int(self.sample_ids[number])] + self.suffixes[int(self.suffix_ids[number])]

    def paired_by(self, parts: Sequence[RequiredPart]) -> ShardIndex:
        """Return an index in which these suffixes are stated, see `pairing`; this one has been paired without any."""
        if not may_split_otherwise(self.keys, self.suffixes, parts):
            return self
        by_offset = np.argsort(self.offsets, kind="stable").tolist()
        names = [self.member_name(part) for part in by_offset]
        offsets, lengths = (array("q", column[by_offset].tobytes()) for column in (self.offsets, self.lengths))
        members = TarMembers(names, offsets, lengths, self.other_members, self.unreadable)
        opened = OpenedShard(self.binding, self.compression, self.data_length)
        return build_index(members, opened, parts, None if self.crcs is None else self.crcs[by_offset])


@dataclass(frozen=True, slots=True)
class OpenedShard:
    """The facts about an open shard that go into its index."""

    binding: IndexBinding
    compression: Compression | None
    data_length: int


def build_index(
    members: TarMembers,
    opened: OpenedShard,
    stated: Sequence[RequiredPart] = (),
    crcs: NDArray[np.uint32] | None = None,
) -> ShardIndex:
    """Pair the members of a shard into samples; `crcs` belong to the members, in the same order."""
    names, other_members = members.names, members.other_members
    offsets, lengths = np.asarray(members.offsets, np.int64), np.asarray(members.lengths, np.int64)
    split = split_names(names, stated)
    ignored = find_ignored(names, split)
    if ignored:
        kept = np.setdiff1d(np.arange(len(names)), list(ignored))
        headers = np.maximum(0, offsets - TAR_BLOCK).tolist()
        ignored_members = [(names[at], headers[at], IGNORED + what) for at, what in ignored.items()]
        other_members = sorted(other_members + ignored_members, key=lambda member: member[1])
        names, offsets, lengths = [names[at] for at in kept.tolist()], offsets[kept], lengths[kept]
        crcs = None if crcs is None else crcs[kept]
        split = split_names(names, stated)
    # Members are ordered by offset and keys are numbered by first appearance, so a stable sort by key is enough.
    order = np.argsort(split.key_ids, kind="stable")
    counts = np.bincount(split.key_ids, minlength=len(split.keys))
    return ShardIndex(
        binding=opened.binding,
        compression=opened.compression,
        data_length=opened.data_length,
        keys=split.keys,
        suffixes=split.suffixes,
        starts=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        suffix_ids=split.suffix_ids[order].astype(np.uint32),
        offsets=offsets[order],
        lengths=lengths[order],
        crcs=None if crcs is None else crcs[order],
        other_members=other_members,
        unreadable=members.unreadable,
    )


def crc32_matches(data: Buffer, expected: int | None) -> bool:
    """Return whether the bytes of a part have the CRC32 that the index stores; True if it stores none."""
    return expected is None or deflate.crc32(data) == expected


# -- the sidecar file ------------------------------------------------------------------------------------------------

INDEX_MAGIC = b"PSTKIDX2"
INDEX_SUFFIX = ".pidx"
MAX_INDEX_BYTES = 4 << 30
"""Largest body, about fifty million parts: no shard is that large, so a larger claim is false."""
INDEX_BYTES_ALWAYS_READ = 64 << 10
"""Bytes that may be read of any index, however small its shard is."""
_INDEX_HEADER = struct.Struct("<8sIQ")


class _IndexBody(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The body of the file. Fields are stored by position, so their order is a part of the format."""

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
    etag: str | None
    """ETag of a shard in an object store."""
    unreadable: dict[int, str]


_DECODER = msgspec.msgpack.Decoder(_IndexBody)
"""Created once, on import: threads that first decode a type at the same time can crash msgspec (seen with 0.22.0)."""


def index_path_beside(shard: str | os.PathLike[str]) -> Path:
    """Return the path of a shard's index if its folder can be written."""
    return Path(os.fspath(shard) + INDEX_SUFFIX)


def index_path_in_cache(shard: str | os.PathLike[str]) -> Path:
    """Return the path of a shard's index in the user's cache, named after the shard's absolute path."""
    path = os.fspath(shard) if is_remote(shard) else os.path.realpath(shard)
    return cache_dir("index") / (hashlib.sha256(os.fsencode(path)).hexdigest()[:32] + INDEX_SUFFIX)


def save_index(index: ShardIndex, shard: str | os.PathLike[str]) -> str | Path:
    """Write the sidecar atomically, beside the shard if possible, else into the cache; return its path or URL."""
    data = encode_index(index)
    try:
        if is_remote(shard):
            write_object(os.fspath(shard) + INDEX_SUFFIX, data)
            return os.fspath(shard) + INDEX_SUFFIX
        path = index_path_beside(shard)
        replace_file(path, data)
    except OSError:
        path = index_path_in_cache(shard)
        replace_file(path, data)
    return path


def load_index(shard: str | os.PathLike[str], current: IndexBinding | None = None) -> ShardIndex | None:
    """Return the stored index, whatever version it describes; None if there is none; IndexFileError if it is bad.

    A folder may have become read-only with a bad or outdated index in it. Then the index in the cache is returned, if
    it describes the `current` version of the shard.
    """
    max_bytes = MAX_INDEX_BYTES if current is None else _max_index_bytes(shard, current)
    fallback: ShardIndex | IndexFileError | None = None
    for path in (os.fspath(shard) + INDEX_SUFFIX, os.fspath(index_path_in_cache(shard))):
        loaded = _load_index_at(path, max_bytes)
        if isinstance(loaded, ShardIndex) and current in (None, loaded.binding):
            return loaded
        fallback = loaded if fallback is None else fallback
    if isinstance(fallback, IndexFileError):
        raise fallback
    return fallback


def _max_index_bytes(shard: str | os.PathLike[str], current: IndexBinding) -> int:
    """Return the largest plausible size: a part takes at least 512 bytes of a shard, and less than 8 times that."""
    if compression_from_name(shard) is not None:
        return MAX_INDEX_BYTES
    return min(MAX_INDEX_BYTES, INDEX_BYTES_ALWAYS_READ + 8 * current.size)


def _load_index_at(path: str, max_bytes: int) -> ShardIndex | IndexFileError | None:
    """Return the index at a path, the error that it is bad, or None if there is no file."""
    try:
        if is_remote(path):
            return decode_index(read_object(path, max_bytes), max_bytes)
        with LocalFile(path) as file:
            if file.size > max_bytes:
                raise IndexFileError(f"index file has {file.size} bytes")
            return decode_index(file.read_at(0, file.size), max_bytes)
    except StorageError:
        return None
    except IndexFileError as error:
        return error.at(shard=path, stage="index")


def encode_index(index: ShardIndex) -> bytes:
    """Return the bytes of the sidecar file."""
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
            notes=index.other_members,
            etag=index.binding.etag,
            unreadable=index.unreadable,
        )
    )
    packed = zstd.compress(body)
    length = struct.pack("<Q", len(body))
    return INDEX_MAGIC + struct.pack("<I", deflate.crc32(length + packed)) + length + packed


def decode_index(data: bytes, max_bytes: int = MAX_INDEX_BYTES) -> ShardIndex:
    """Parse and check the bytes of a sidecar file; anything invalid is an IndexFileError."""
    if len(data) < _INDEX_HEADER.size or data[:7] != INDEX_MAGIC[:7]:
        raise IndexFileError("is not an index file")
    magic, crc, length = _INDEX_HEADER.unpack_from(data)
    if magic != INDEX_MAGIC:
        raise IndexVersionError(f"index version {magic[7:]!r} is not the one this Penstock reads ({INDEX_MAGIC[7:]!r})")
    if deflate.crc32(data[12:]) != crc:
        raise IndexFileError("index checksum does not match")
    if length > max_bytes:
        raise IndexFileError(f"index claims {length} bytes")
    try:
        body = _DECODER.decode(zstd.decompress(data[_INDEX_HEADER.size :], max_length=length))
    except (msgspec.MsgspecError, SampleError, UnicodeDecodeError) as error:
        raise IndexFileError(f"index cannot be parsed: {error}") from error
    return _validate_body(body)


def _validate_body(body: _IndexBody) -> ShardIndex:
    """Check that columns have equal lengths and numbers are in range, which all readers of an index rely on."""
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
        other_members=body.notes,
        unreadable=body.unreadable,
    )


def _column_bytes(column: NDArray[Any], dtype: str) -> bytes:
    return np.ascontiguousarray(column, dtype).tobytes()


def _parse_column(data: bytes, dtype: str) -> NDArray[Any]:
    if len(data) % np.dtype(dtype).itemsize:
        raise IndexFileError("the length of an index column is not a multiple of its item size")
    return np.frombuffer(data, dtype)

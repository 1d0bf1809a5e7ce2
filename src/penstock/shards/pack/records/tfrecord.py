"""Reads TFRecord files of `tf.train.Example` messages, without TensorFlow.

A record is a length (8 bytes), the masked CRC32C of the length, the message, and the masked CRC32C of the message. The
message is a protocol buffer: a map from names to lists of bytes, floats or integers.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import Sample
from penstock.errors import DecodeError, SampleError, ShardError
from penstock.shards.pack.records.columns import (
    MAX_VALUE_BYTES,
    FoundColumn,
    Kind,
    RecordColumn,
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
    import_library,
    record_index,
)
from penstock.shards.validate import ShardProblem
from penstock.storage.local import LocalFile

INSPECTED_RECORDS = 64
"""Records of the first file whose features, all together, are the columns: a record may lack some of them."""
_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types of protocol buffers."""
_GZIP = b"\x1f\x8b"
_GENERAL: tuple[Kind, ...] = ("image", "bytes")
"""Kinds that a column has if one of its values has it; text may be bytes by chance."""

Feature = list[bytes] | list[int] | NDArray[np.float32]


@dataclass(frozen=True)
class TFRecordReader(RecordReader):
    """Reads records at their byte offsets. The CRC32C of each record is checked."""

    all_features: bool
    """Whether features that no column stands for are added to the JSON, since the user has not named the columns."""

    format_name = "TFRecord"
    library = ("google_crc32c", "tfrecord")
    byte_offsets = True

    @classmethod
    def open(cls, paths: Sequence[str], columns: StatedColumns) -> Self:
        """Return the reader, with the features that the first records of the first file have."""
        listed = _list_offsets(paths[0], INSPECTED_RECORDS)
        found: dict[str, FoundColumn] = {}
        reason = "there is no record"
        with LocalFile(paths[0]) as file:
            for offset in listed.offsets:
                try:
                    example = parse_example(_read_record(file, offset))
                except SampleError as error:  # reported when the record is packed
                    reason = error.reason
                    continue
                for name, values in example.items():
                    found[name] = _merge(found.get(name), _found_column(name, values))
        if not found:
            raise listed.problem or damaged_file(f"has no record with features: {reason}", paths[0])
        return cls(assign_roles([found[name] for name in sorted(found)], columns, paths[0]), not columns)

    def list_records(self, path: str) -> ListedRecords:
        """Return the records, by a walk from length to length."""
        listed = _list_offsets(path)
        offsets, lengths = np.array(listed.offsets, np.int64), np.array(listed.lengths, np.int64)
        problems: tuple[ShardProblem, ...] = ()
        if listed.problem is not None:
            offset = listed.problem.offset or 0
            problems = (ShardProblem("unreadable", f"{len(offsets):08d}", offset, listed.problem.reason),)
        return ListedRecords(record_index(path, offsets, lengths), problems)

    def read(self, path: str, samples: Sequence[Sample]) -> Iterator[Parts | SampleError]:
        """Yield the parts of each record."""
        with LocalFile(path) as file:
            for sample in samples:
                try:
                    yield self._parts(parse_example(_read_record(file, sample.parts[0].offset)))
                except SampleError as error:
                    yield error

    def _parts(self, example: dict[str, Feature]) -> Parts:
        columns = self.columns
        if self.all_features and len(example) > len(columns):
            rare = [_found_column(name, example[name]) for name in example.keys() - {column.name for column in columns}]
            columns += tuple(_json_column(column) for column in rare)
        values: dict[str, Any] = {}
        for column in columns:
            feature = example.get(column.name)
            if feature is None:
                continue
            if column.role in ("array", "json"):
                values[column.name] = feature
            elif len(feature) == 1:
                values[column.name] = feature[0]
            else:
                raise SampleError(
                    f"feature {column.name!r} has {len(feature)} values where one is expected",
                    stage="read",
                    advice=f"Pack it as JSON: --column {column.name}=json",
                )
        return record_parts(columns, values)


def _json_column(column: FoundColumn) -> RecordColumn:
    """Return the column of a feature that the inspected records lack; only what fits into JSON can be added."""
    if column.refusal or column.kind in ("image", "bytes"):
        raise SampleError(
            f"feature {column.name!r} holds bytes, and the first {INSPECTED_RECORDS} records of the source lack it",
            stage="read",
            advice="Name all columns to pack with --column",
        )
    return RecordColumn(column.name, "json", ".json")


def _found_column(name: str, values: Feature) -> FoundColumn:
    if isinstance(values, np.ndarray) or not len(values):
        return FoundColumn(name, "other")
    if isinstance(values[0], int):
        return FoundColumn(name, "integer" if len(values) == 1 else "other")
    texts = [value for value in values if isinstance(value, bytes)]
    if all(map(image_ending, texts)):
        refusal = None if len(texts) == 1 else "holds several images, which are packed one per column only"
        return FoundColumn(name, "image", refusal=refusal)
    if all(map(_is_text, texts)):
        return FoundColumn(name, "string" if len(texts) == 1 else "other")
    return FoundColumn(name, "bytes", refusal=None if len(texts) == 1 else "holds several values of bytes")


def _merge(earlier: FoundColumn | None, column: FoundColumn) -> FoundColumn:
    """Return the column that has the values of both records: of two kinds, the more general one."""
    if earlier is None or earlier == column:
        return column
    kinds = (earlier.kind, column.kind)
    kind: Kind = kinds[0] if kinds[0] == kinds[1] else next((kind for kind in _GENERAL if kind in kinds), "other")
    return FoundColumn(column.name, kind, refusal=earlier.refusal or column.refusal)


def _is_text(value: bytes) -> bool:
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


# -- records -----------------------------------------------------------------------------------------------------------


@dataclass
class _Offsets:
    """The records of a file up to its end, or up to the first place where it is damaged."""

    offsets: array[int]
    lengths: array[int]
    """Length of each message."""
    problem: ShardError | None = None


def _list_offsets(path: str, limit: int | None = None) -> _Offsets:
    """Step over the records of a file, or over the first `limit`; a file that begins with no record is an error."""
    listed = _Offsets(array("q"), array("q"))
    position = 0
    with LocalFile(path) as file:
        while position < file.size and (limit is None or len(listed.offsets) < limit):
            reason, length = _check_length(file, position)
            if reason is not None:
                listed.problem = damaged_file(reason, path).at(offset=position)
                break
            listed.offsets.append(position)
            listed.lengths.append(length)
            position += _HEADER.size + length + _CRC.size
    if listed.problem is not None and not listed.offsets:
        raise listed.problem
    return listed


def _check_length(file: LocalFile, position: int) -> tuple[str | None, int]:
    """Return why the records cannot be followed from here on, or None and the length of the next message."""
    header = file.read_at(position, _HEADER.size)
    rest = f"the {file.size - position} bytes from here on cannot be read as records"
    if position == 0 and header.startswith(_GZIP):
        return "is compressed as a whole: decompress it with gunzip first", 0
    if len(header) < _HEADER.size:
        return f"is cut short: {rest}", 0
    length, crc = _HEADER.unpack(header)
    if masked_crc(header[:8]) != crc:
        return f"the checksum of a record's length does not match: {rest}", 0
    if length > MAX_VALUE_BYTES:
        return f"states a record of {length} bytes, more than {MAX_VALUE_BYTES}: {rest}", 0
    if position + _HEADER.size + length + _CRC.size > file.size:
        return f"is cut short in a record of {length} bytes: {rest}", 0
    return None, length


def _read_record(file: LocalFile, offset: int) -> bytes:
    """Return the message of a record whose length has been checked."""
    length, _ = _HEADER.unpack(file.read_at(offset, _HEADER.size))
    data = file.read_at(offset + _HEADER.size, length + _CRC.size)
    if len(data) < length + _CRC.size or _CRC.unpack(data[length:])[0] != masked_crc(data[:length]):
        raise damaged_record("the CRC32C of the record does not match")
    return data[:length]


def masked_crc(data: bytes) -> int:
    """Return the CRC32C as TFRecord files store it: rotated, plus a constant."""
    crc: int = import_library("google_crc32c", "tfrecord").value(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


# -- messages ----------------------------------------------------------------------------------------------------------


def parse_example(data: bytes) -> dict[str, Feature]:
    """Return the features of a `tf.train.Example` by name; a SampleError if it is none."""
    features: dict[str, Feature] = {}
    for number, value in _fields(memoryview(data)):
        if number == 2:
            raise SampleError(
                "is a tf.train.SequenceExample, which Penstock does not read",
                stage="read",
                advice="Write tf.train.Example messages",
            )
        for entry_number, entry in _fields(_message(value)) if number == 1 else ():
            if entry_number == 1:
                name, feature = _map_entry(_message(entry))
                features[name] = feature
    return features


def _map_entry(entry: memoryview) -> tuple[str, Feature]:
    name, feature = "", memoryview(b"")
    for number, value in _fields(entry):
        if number == 1:
            name = _decoded(_message(value))
        elif number == 2:
            feature = _message(value)
    return name, _feature(feature)


def _decoded(name: memoryview) -> str:
    try:
        return str(name, "utf-8")
    except UnicodeDecodeError:
        raise _broken("the name of a feature is not UTF-8") from None


def _feature(data: memoryview) -> Feature:
    """Return the values of one feature; an empty list if it has none."""
    values: Feature = []
    for number, value in _fields(data):
        if number not in (1, 2, 3):
            continue
        items = [item for item_number, item in _fields(_message(value)) if item_number == 1]
        if number == 1:
            values = [bytes(_message(item)) for item in items]
        elif number == 2:
            values = _floats(items)
        else:
            values = [_signed(integer) for item in items for integer in _integers(item)]
    return values


def _floats(items: Sequence[int | memoryview]) -> NDArray[np.float32]:
    """Return floats that are packed, or stored one by one."""
    if any(isinstance(item, int) and item >= 1 << 32 for item in items):
        raise _broken("a float has more than 32 bits")
    data = b"".join(item if isinstance(item, memoryview) else item.to_bytes(4, "little") for item in items)
    if len(data) % 4:
        raise _broken("a list of floats has a fraction of a float")
    return np.frombuffer(data, "<f4")


def _integers(item: int | memoryview) -> Iterator[int]:
    """Yield integers that are packed, or the one that is stored alone."""
    if isinstance(item, int):
        yield item
        return
    position = 0
    while position < len(item):
        value, position = _varint(item, position)
        yield value


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the number and the value of each field of a message: an integer, or the bytes of a string or message."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        wire_type = key & 7
        if wire_type == _VARINT:
            value, position = _varint(data, position)
            yield key >> 3, value
            continue
        length = {_FIXED32: 4, _FIXED64: 8}.get(wire_type, -1)
        if wire_type == _BYTES:
            length, position = _varint(data, position)
        if length < 0 or position + length > len(data):
            raise _broken(f"a field of type {wire_type} is cut short or unknown")
        content = data[position : position + length]
        position += length
        yield key >> 3, content if wire_type == _BYTES else int.from_bytes(content, "little")


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """Return an integer of seven bits per byte, and the position behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, position
    raise _broken("an integer is cut short or too long")


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise _broken("a field has the wrong type")
    return value


def _broken(what: str) -> DecodeError:
    return damaged_record(f"is no tf.train.Example: {what}")

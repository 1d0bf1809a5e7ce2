"""Read a ZIP's directory, and refuse archives that contradict themselves, overlap, or inflate too much.

The check is strict where two readers could see two archives in the same bytes: the directory ends where its end record
begins, nothing follows that record, and every local header agrees with its directory entry.
"""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass

from penstock.errors import GuardError
from penstock.shards.guards.buffer import Buffer, flat_view

MAX_ENTRIES = 4096
"""Largest number of entries; a sample has a handful of arrays."""

ZIP64_MARKER = 0xFFFFFFFF
"""Value of a 32-bit field whose real value is in a zip64 record."""
_ZIP64_MARKER_16 = 0xFFFF
_END = struct.Struct("<4s4H2LH")
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")

FETCH_AGAIN = "Copy or download it again, or leave the sample out"
_SAVE_AGAIN = "Save it again with numpy.savez or numpy.savez_compressed"


@dataclass(frozen=True, slots=True)
class ZipDirectory:
    """The position of the directory, and the number of entries it announces."""

    count: int
    start: int
    end: int


def find_directory(view: bytes | memoryview) -> ZipDirectory:
    """Return the position of the directory; strict, so that no other reader sees another archive in the same bytes."""
    end_at = _find_end(view)
    _, disk, first_disk, *narrow, _ = _END.unpack_from(view, end_at)
    stop, sizes = end_at, narrow
    locator_at = end_at - _END64_LOCATOR.size
    if locator_at >= 0 and view[locator_at : locator_at + 4] == b"PK\x06\x07":
        _, disk, stop, disks = _END64_LOCATOR.unpack_from(view, locator_at)
        if stop + _END64.size != locator_at or view[stop : stop + 4] != b"PK\x06\x06" or disk or disks > 1:
            raise refusal("the ZIP's zip64 end record is not at its announced offset")
        _, _, _, _, disk, first_disk, *sizes = _END64.unpack_from(view, stop)
        full = (_ZIP64_MARKER_16, _ZIP64_MARKER_16, ZIP64_MARKER, ZIP64_MARKER)
        if any(old not in (new, top) for old, new, top in zip(narrow, sizes, full, strict=True)):
            raise refusal("the ZIP's two end records disagree")
    count_here, count, length, start = sizes
    if disk or first_disk or count_here != count:
        raise refusal("the ZIP spans several disks")
    if start + length != stop:
        raise refusal("the ZIP's directory does not lie directly before its end record")
    if count > MAX_ENTRIES:
        raise refusal(f"the ZIP says it has {count} entries; {MAX_ENTRIES} is the limit")
    return ZipDirectory(count, start, stop)


def _find_end(view: bytes | memoryview) -> int:
    """Return the offset of the end record: the last 22 bytes, unless a comment follows it."""
    offset = len(view) - _END.size
    if offset >= 0 and view[offset : offset + 4] == b"PK\x05\x06" and view[offset + 20] == 0 == view[offset + 21]:
        return offset
    tail = bytes(view[-(_END.size + _ZIP64_MARKER_16) :])
    offset = tail.rfind(b"PK\x05\x06")
    if offset < 0 or offset + _END.size > len(tail):
        raise refusal("not a whole ZIP: the end record is missing", FETCH_AGAIN)
    if offset + _END.size + int.from_bytes(tail[offset + 20 : offset + 22], "little") != len(tail):
        raise refusal("the ZIP's comment does not end where the file does", FETCH_AGAIN)
    return len(view) - len(tail) + offset


def refusal(reason: str, advice: str = _SAVE_AGAIN) -> GuardError:
    """Return the error for an archive that must not be read."""
    return GuardError(reason, stage="guard", advice=advice)


MAX_ENTRY_BYTES = 2**30
"""Largest inflated size of one array: far above any training sample, small enough for a worker."""
MAX_TOTAL_BYTES = 2**31
"""Largest inflated size of all arrays together."""
MAX_DEFLATE_RATIO = 1032
"""Deflate needs at least 2 bits for 258 bytes; genuine arrays of zeros reach this ratio, so it cannot be lower."""

STORED, DEFLATED = 0, 8

_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_ENCRYPTED = 0x0001 | 0x0040 | 0x2000
_SIZES_FOLLOW = 0x0008
_UTF8 = 0x0800


@dataclass(frozen=True, slots=True)
class ZipEntry:
    """One file of an archive; its compressed bytes are data[start : start + compressed_length]."""

    name: str
    method: int
    """STORED or DEFLATED."""
    start: int
    compressed_length: int
    length: int
    crc32: int


@dataclass(slots=True)
class _DirectoryRecord:
    """A directory entry as it is stored, before it is checked."""

    flags: int
    method: int
    crc32: int
    compressed_length: int
    length: int
    header_start: int
    raw_name: bytes
    name: str
    end: int
    """Offset of the next directory entry."""


def inspect_zip(data: Buffer) -> tuple[ZipEntry, ...]:
    """Return the entries of a sound archive in directory order; GuardError on anything else."""
    view = flat_view(data)
    directory = find_directory(view)
    entries: list[ZipEntry] = []
    ranges: list[tuple[int, int]] = []
    offset = directory.start
    for _ in range(directory.count):
        record = _read_record(view, offset, directory.end)
        _check_record(record)
        entry = _locate_data(view, record, directory.start)
        entries.append(entry)
        ranges.append((record.header_start, entry.start + entry.compressed_length))
        offset = record.end
    if offset != directory.end:
        raise refusal(f"the ZIP's directory ends at byte {offset}, not where its end record is ({directory.end})")
    _check_archive(entries, ranges)
    return tuple(entries)


def _read_record(view: bytes | memoryview, offset: int, limit: int) -> _DirectoryRecord:
    name_start = offset + _ENTRY.size
    if name_start > limit:
        raise refusal("the ZIP's directory is cut short", FETCH_AGAIN)
    record = _ENTRY.unpack_from(view, offset)
    signature, _, _, flags, method, _, _, crc32, compressed, length = record[:10]
    name_length, extra_length, comment_length, disk, _, _, header_start = record[10:]
    extra_start = name_start + name_length
    end = extra_start + extra_length + comment_length
    if signature != b"PK\x01\x02" or end > limit:
        raise refusal(f"the ZIP's directory is broken at byte {offset}", FETCH_AGAIN)
    if disk:
        raise refusal("the ZIP spans several disks")
    raw_name = bytes(view[name_start:extra_start])
    name = _decode_name(raw_name, flags)
    if ZIP64_MARKER in (length, compressed, header_start):
        extra = bytes(view[extra_start : extra_start + extra_length])
        length, compressed, header_start = _read_zip64(name, extra, length, compressed, header_start)
    return _DirectoryRecord(flags, method, crc32, compressed, length, header_start, raw_name, name, end)


def _decode_name(raw: bytes, flags: int) -> str:
    try:
        return raw.decode("utf-8" if flags & _UTF8 else "cp437")
    except UnicodeDecodeError:
        raise refusal(f"the ZIP has an entry name that is not UTF-8: {raw!r}") from None


def _read_zip64(name: str, extra: bytes, *sizes: int) -> list[int]:
    """Return the sizes, replacing those too large for 32 bits by the values of the extra field, in this order."""
    offset = 0
    while offset + 4 <= len(extra):
        tag, length = struct.unpack_from("<2H", extra, offset)
        if tag == 1 and offset + 4 + length <= len(extra):
            values = iter(struct.unpack_from(f"<{length // 8}Q", extra, offset + 4))
            wide = [next(values, -1) if size == ZIP64_MARKER else size for size in sizes]
            if -1 not in wide:
                return wide
        offset += 4 + length
    raise refusal(f"the ZIP's entry {name!r} lacks the zip64 sizes it announces")


def _check_record(record: _DirectoryRecord) -> None:
    entry = f"the ZIP's entry {record.name!r}"
    if record.flags & _ENCRYPTED:
        raise refusal(f"{entry} is encrypted", "Save it again without a password")
    if record.method not in (STORED, DEFLATED):
        raise refusal(f"{entry} is compressed by method {record.method}; only stored and deflate are read")
    if record.length > MAX_ENTRY_BYTES:
        raise refusal(f"{entry} inflates to {record.length} bytes; {MAX_ENTRY_BYTES} is the limit")
    most = record.compressed_length * (MAX_DEFLATE_RATIO if record.method == DEFLATED else 1)
    if record.length > most or (record.method == STORED and record.length < most):
        raise refusal(f"{entry} says that {record.compressed_length} bytes become {record.length}: impossible")


def _locate_data(view: bytes | memoryview, record: _DirectoryRecord, limit: int) -> ZipEntry:
    """Return the entry with the offset of its data, from a local header that must agree with the directory.

    numpy reserves space for zip64 sizes in local headers only, so the directory does not determine that offset.
    """
    offset = record.header_start
    if offset + _LOCAL.size > limit:
        raise refusal("the ZIP's directory points outside the data", FETCH_AGAIN)
    header = _LOCAL.unpack_from(view, offset)
    signature, _, flags, method, _, _, _, compressed, length, name_length, extra_length = header
    name_end = offset + _LOCAL.size + name_length
    start = name_end + extra_length
    disagree = f"the ZIP's directory and local header disagree on {record.name!r}"
    if signature != b"PK\x03\x04" or view[offset + _LOCAL.size : name_end] != record.raw_name:
        raise refusal(f"{disagree}: its name")
    if (flags ^ record.flags) & _ENCRYPTED or method != record.method:
        raise refusal(f"{disagree}: how it is stored")
    if not flags & _SIZES_FOLLOW and (
        compressed not in (record.compressed_length, ZIP64_MARKER) or length not in (record.length, ZIP64_MARKER)
    ):
        raise refusal(f"{disagree}: its size")
    if start + record.compressed_length > limit:
        raise refusal(f"the ZIP's entry {record.name!r} reaches beyond the data", FETCH_AGAIN)
    return ZipEntry(record.name, method, start, record.compressed_length, record.length, record.crc32)


def _check_archive(entries: list[ZipEntry], ranges: list[tuple[int, int]]) -> None:
    total = sum(entry.length for entry in entries)
    if total > MAX_TOTAL_BYTES:
        raise refusal(f"the ZIP inflates to {total} bytes in all; {MAX_TOTAL_BYTES} is the limit")
    if len({entry.name for entry in entries}) != len(entries):
        raise refusal("the ZIP has two entries of the same name")
    ranges.sort()
    for (_, end), (start, _) in itertools.pairwise(ranges):
        if start < end:
            raise refusal(f"the ZIP's entries overlap at byte {start}: the mark of a zip bomb")

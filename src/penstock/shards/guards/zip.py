"""Read a ZIP's directory, and refuse archives that contradict themselves, overlap, or inflate too much.

The check is strict where two readers could see two archives in the same bytes: the directory ends where its end record
begins, nothing follows that record, and every local header agrees with its directory entry.
"""

from __future__ import annotations

import functools
import struct
from typing import NamedTuple

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


class ZipDirectory(NamedTuple):
    """The position of the directory, and the number of entries it announces."""

    entries: int
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
_METHODS = (STORED, DEFLATED)

_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_ENTRY_BYTES, _LOCAL_BYTES = _ENTRY.size, _LOCAL.size
_read_directory_entry, _read_local_header = _ENTRY.unpack_from, _LOCAL.unpack_from
_ENCRYPTED = 0x0001 | 0x0040 | 0x2000
_SIZES_FOLLOW = 0x0008
_UTF8 = 0x0800


class ZipEntry(NamedTuple):
    """One file of an archive; its compressed bytes are data[start : start + compressed_length]."""

    name: str
    method: int
    """STORED or DEFLATED."""
    start: int
    compressed_length: int
    length: int
    crc32: int


def inspect_zip(data: Buffer) -> tuple[ZipEntry, ...]:
    """Return the entries of a sound archive in directory order; GuardError on anything else."""
    view = flat_view(data)
    directory = find_directory(view)
    entries: list[ZipEntry] = []
    ranges: list[tuple[int, int]] = []
    offset = directory.start
    for _ in range(directory.entries):
        entry, header_start, offset = _read_entry(view, offset, directory)
        entries.append(entry)
        ranges.append((header_start, entry.start + entry.compressed_length))
    if offset != directory.end:
        raise refusal(f"the ZIP's directory ends at byte {offset}, not where its end record is ({directory.end})")
    _check_archive(entries, ranges)
    return tuple(entries)


def _read_entry(view: bytes | memoryview, offset: int, directory: ZipDirectory) -> tuple[ZipEntry, int, int]:
    """Return the entry at this offset of the directory, the offset of its local header, and that of the next entry.

    One function reads and checks both headers, because calls take most of the time that a small array needs.
    """
    name_start = offset + _ENTRY_BYTES
    if name_start > directory.end:
        raise refusal("the ZIP's directory is cut short", FETCH_AGAIN)
    (
        signature, _, _, flags, method, _, _, crc32, compressed, length,
        name_length, extra_length, comment_length, disk, _, _, header_start,
    ) = _read_directory_entry(view, offset)  # fmt: skip
    extra_start = name_start + name_length
    end = extra_start + extra_length + comment_length
    if signature != b"PK\x01\x02" or end > directory.end:
        raise refusal(f"the ZIP's directory is broken at byte {offset}", FETCH_AGAIN)
    if disk:
        raise refusal("the ZIP spans several disks")
    raw_name = bytes(view[name_start:extra_start])
    name = _decode_name(raw_name, flags & _UTF8)
    if length == ZIP64_MARKER or compressed == ZIP64_MARKER or header_start == ZIP64_MARKER:
        extra = bytes(view[extra_start : extra_start + extra_length])
        length, compressed, header_start = _read_zip64(name, extra, length, compressed, header_start)
    most = compressed if method == STORED else compressed * MAX_DEFLATE_RATIO
    if (
        flags & _ENCRYPTED
        or method not in _METHODS
        or length > MAX_ENTRY_BYTES
        or length > most
        or (method == STORED and length < most)
    ):
        raise _refused_entry(name, flags, method, compressed, length)
    start = _data_start(view, directory.start, raw_name, flags, method, compressed, length, header_start)
    return ZipEntry(name, method, start, compressed, length, crc32), header_start, end


@functools.lru_cache(maxsize=256)
def _decode_name(raw: bytes, utf8: int) -> str:
    """Decode the name of an entry; it is kept, because the samples of a dataset share their names."""
    try:
        return raw.decode("utf-8" if utf8 else "cp437")
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


def _refused_entry(name: str, flags: int, method: int, compressed: int, length: int) -> GuardError:
    entry = f"the ZIP's entry {name!r}"
    if flags & _ENCRYPTED:
        return refusal(f"{entry} is encrypted", "Save it again without a password")
    if method not in _METHODS:
        return refusal(f"{entry} is compressed by method {method}; only stored and deflate are read")
    if length > MAX_ENTRY_BYTES:
        return refusal(f"{entry} inflates to {length} bytes; {MAX_ENTRY_BYTES} is the limit")
    return refusal(f"{entry} says that {compressed} bytes become {length}: impossible")


def _data_start(
    view: bytes | memoryview,
    limit: int,
    raw_name: bytes,
    flags: int,
    method: int,
    compressed: int,
    length: int,
    offset: int,
) -> int:
    """Return the offset of an entry's data, from the local header at `offset`, which must agree with the directory.

    numpy reserves space for zip64 sizes in local headers only, so the directory does not determine that offset.
    """
    header_end = offset + _LOCAL_BYTES
    if header_end > limit:
        raise refusal("the ZIP's directory points outside the data", FETCH_AGAIN)
    (
        signature, _, local_flags, local_method, _, _, _, local_compressed, local_length, name_length, extra_length,
    ) = _read_local_header(view, offset)  # fmt: skip
    name_end = header_end + name_length
    start: int = name_end + extra_length
    if signature != b"PK\x03\x04" or view[header_end:name_end] != raw_name:
        raise _disagreement(raw_name, flags, "its name")
    if (local_flags ^ flags) & _ENCRYPTED or local_method != method:
        raise _disagreement(raw_name, flags, "how it is stored")
    if not local_flags & _SIZES_FOLLOW and (
        (local_compressed != compressed and local_compressed != ZIP64_MARKER)
        or (local_length != length and local_length != ZIP64_MARKER)
    ):
        raise _disagreement(raw_name, flags, "its size")
    if start + compressed > limit:
        raise refusal(f"the ZIP's entry {_decode_name(raw_name, flags & _UTF8)!r} reaches beyond the data", FETCH_AGAIN)
    return start


def _disagreement(raw_name: bytes, flags: int, what: str) -> GuardError:
    return refusal(
        f"the ZIP's directory and local header disagree on {_decode_name(raw_name, flags & _UTF8)!r}: {what}"
    )


def _check_archive(entries: list[ZipEntry], ranges: list[tuple[int, int]]) -> None:
    total = 0
    for entry in entries:
        total += entry.length
    if total > MAX_TOTAL_BYTES:
        raise refusal(f"the ZIP inflates to {total} bytes in all; {MAX_TOTAL_BYTES} is the limit")
    if len({entry.name for entry in entries}) != len(entries):
        raise refusal("the ZIP has two entries of the same name")
    ranges.sort()
    previous_end = 0
    for start, end in ranges:
        if start < previous_end:
            raise refusal(f"the ZIP's entries overlap at byte {start}: the mark of a zip bomb")
        previous_end = end

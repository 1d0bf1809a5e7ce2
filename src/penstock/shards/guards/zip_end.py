"""Finds a ZIP's directory from the end record, plain or zip64."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from penstock.errors import GuardError

MAX_ENTRIES = 4096
"""A sample has a handful of arrays."""

FULL_32 = 0xFFFFFFFF
"""Stands in a 32-bit field whose value is in a zip64 record."""
_FULL_16 = 0xFFFF
_END = struct.Struct("<4s4H2LH")
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")

FETCH_AGAIN = "Copy or download it again, or leave the sample out"
_SAVE_AGAIN = "Save it again with numpy.savez or numpy.savez_compressed"


@dataclass(frozen=True, slots=True)
class Directory:
    """The span of the directory, and how many entries it says it has."""

    count: int
    start: int
    end: int


def find_directory(view: bytes | memoryview) -> Directory:
    """Where the directory lies; strict, so that no other reader can see another archive in the same bytes."""
    end_at = _find_end(view)
    _, disk, first_disk, *narrow, _ = _END.unpack_from(view, end_at)
    stop, sizes = end_at, narrow
    locator_at = end_at - _END64_LOCATOR.size
    if locator_at >= 0 and view[locator_at : locator_at + 4] == b"PK\x06\x07":
        _, disk, stop, disks = _END64_LOCATOR.unpack_from(view, locator_at)
        if stop + _END64.size != locator_at or view[stop : stop + 4] != b"PK\x06\x06" or disk or disks > 1:
            raise refusal("the ZIP's zip64 end record is not where it should be")
        _, _, _, _, disk, first_disk, *sizes = _END64.unpack_from(view, stop)
        full = (_FULL_16, _FULL_16, FULL_32, FULL_32)
        if any(old not in (new, top) for old, new, top in zip(narrow, sizes, full, strict=True)):
            raise refusal("the ZIP's two end records disagree")
    count_here, count, length, start = sizes
    if disk or first_disk or count_here != count:
        raise refusal("the ZIP spans several disks")
    if start + length != stop:
        raise refusal("the ZIP's directory does not lie directly before its end record")
    if count > MAX_ENTRIES:
        raise refusal(f"the ZIP says it has {count} entries; {MAX_ENTRIES} is the limit")
    return Directory(count, start, stop)


def _find_end(view: bytes | memoryview) -> int:
    """Where the end record begins: the last 22 bytes, unless a comment follows it."""
    at = len(view) - _END.size
    if at >= 0 and view[at : at + 4] == b"PK\x05\x06" and view[at + 20] == 0 == view[at + 21]:
        return at
    tail = bytes(view[-(_END.size + _FULL_16) :])
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or at + _END.size > len(tail):
        raise refusal("not a whole ZIP: the end record is missing", FETCH_AGAIN)
    if at + _END.size + int.from_bytes(tail[at + 20 : at + 22], "little") != len(tail):
        raise refusal("the ZIP's comment does not end where the file does", FETCH_AGAIN)
    return len(view) - len(tail) + at


def refusal(reason: str, advice: str = _SAVE_AGAIN) -> GuardError:
    """The error for an archive that must not be read."""
    return GuardError(reason, stage="guard", advice=advice)

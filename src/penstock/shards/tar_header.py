"""Tar headers of 512 bytes: check and decode one, or hundreds at once in numpy."""

from __future__ import annotations

import struct
import threading
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

TAR_BLOCK = 512
HEADER_BATCH = 512
"""Headers checked at once: enough to amortise the numpy calls, few enough to stay in the CPU cache."""

_HEADER = np.dtype(
    {
        "names": ["name", "magic", "has_prefix", "prefix"],
        "formats": ["S100", "S6", "u1", "S155"],
        "offsets": [0, 257, 345, 345],
        "itemsize": TAR_BLOCK,
    }
)
Headers = NDArray[np.uint8]
"""An array with one header per row."""
SIZE_OFFSET = 124
unpack_size_and_type = struct.Struct("11sB20xB").unpack_from
"""Return the eleven digits of the size, the byte that terminates them, and the type further on."""
_OCTAL_PLACES = np.arange(15, -1, -3, dtype=np.uint32)[:, None]


class HeaderPage(threading.local):
    """A thread's buffer for one batch of headers, reused by all walks: allocating it costs more than filling it."""

    def __init__(self) -> None:
        self.buffer = bytearray(HEADER_BATCH * TAR_BLOCK)
        view = memoryview(self.buffer)
        self.rows = [[view[start : start + TAR_BLOCK]] for start in range(0, HEADER_BATCH * TAR_BLOCK, TAR_BLOCK)]
        gap = memoryview(bytearray(TAR_BLOCK))
        self.pairs = [[*row, gap, *following] for row, following in pairwise(self.rows)] + self.rows[-1:]
        """Buffers for a header, one data block and the next header, so that one read brings both headers."""
        self.headers: Headers = np.frombuffer(self.buffer, np.uint8).reshape(-1, TAR_BLOCK)


header_page = HeaderPage()


def checksums_match(rows: Headers) -> NDArray[np.bool_]:
    """Return for each header whether the sum of its bytes is the one in its checksum field."""
    stated = rows[:, 148:156].T.copy()  # contiguous by digit, which is the stride that numpy is fast with
    # 512 bytes below 128 add up to less than 65536, and 16-bit sums are twice as fast
    width = np.uint16 if rows.max() < 128 else np.uint32
    # the checksum is defined with blanks in place of its own field
    total = rows.sum(axis=1, dtype=width) - stated.sum(axis=0, dtype=np.uint32) + 8 * 32
    usual = (total >> _OCTAL_PLACES & 7) + 48
    matches: NDArray[np.bool_] = (stated[:6] == usual).all(axis=0) & (stated[6] == 0)
    for row in np.flatnonzero(~matches):
        matches[row] = _checksum_matches(rows[row], int(total[row]))
    return matches


def _checksum_matches(row: NDArray[np.uint8], total: int) -> bool:
    """Compare other notations of the field, and sums over signed bytes."""
    text = row[148:156].tobytes().strip(b" \0")
    if not text.isdigit() or b"8" in text or b"9" in text:
        return False
    signed = total - 256 * int((np.delete(row, range(148, 156)) > 127).sum())
    return int(text, 8) in (total, signed)


def decode_names(headers: Headers) -> list[str]:
    """Return the names of a run of headers, joined with the prefix if there is one."""
    rows = headers.reshape(-1).view(_HEADER)
    names: list[bytes] = rows["name"].tolist()
    joined = b"\n".join(names)
    if b"\0" in joined or joined.count(b"\n") != len(names) - 1 or not joined.isascii():
        texts = [decode_text(name.split(b"\0", 1)[0]) for name in names]
    else:
        texts = joined.decode("ascii").split("\n")
    for row in np.flatnonzero(rows["has_prefix"]):
        if rows["magic"][row] == b"ustar":  # GNU tar stores times in this field
            texts[row] = decode_text(rows["prefix"][row].split(b"\0", 1)[0]) + "/" + texts[row]
    return texts


def as_header_rows(header: bytes) -> Headers:
    """Return a single header as an array with one row; a short one is padded with zeros."""
    return np.frombuffer(header.ljust(TAR_BLOCK, b"\0"), np.uint8).reshape(1, TAR_BLOCK)


def decode_text(raw: bytes) -> str:
    """Decode a member's name. It serves only as a key, so bytes that are not UTF-8 become visible escapes."""
    return raw.decode("utf-8", "backslashreplace")


_UNPACK = " (unpack it: .tar, .tar.gz and .tar.zst can be read)"
_SIGNATURES = {
    b"\x1f\x8b": "gzip (name it .tar.gz)",
    b"\x28\xb5\x2f\xfd": "zstd (name it .tar.zst)",
    b"bzh": "bzip2" + _UNPACK,
    b"\xfd7zxz\0": "xz" + _UNPACK,
    b"\x04\x22\x4d\x18": "lz4" + _UNPACK,
    b"7z\xbc\xaf\x27\x1c": "7z" + _UNPACK,
    b"pk\x03\x04": "zip" + _UNPACK,
    b"version https://git-lfs": "a git-lfs pointer instead of the file (run 'git lfs pull')",
    b"<!doctype": "a web page (did a download fail?)",
    b"<html": "a web page (did a download fail?)",
    b"<?xml": "a web page (did a download fail?)",
}
"""Formats by the first bytes of a file, in lower case."""


def guess_format(header: bytes) -> str:
    """Return what a file is that cannot be read as its name says, by its first block; empty if not recognised."""
    head = header[:64].lower()
    for signature, what in _SIGNATURES.items():
        if head.startswith(signature) or head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(signature):
            return f", which is {what}"
    return ", which is a tar (name it .tar)" if checksums_match(as_header_rows(header))[0] else ""

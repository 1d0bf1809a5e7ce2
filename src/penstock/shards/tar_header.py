"""One tar header, or a page of them: 512 bytes each, checked and read by the hundred."""

from __future__ import annotations

import struct
import threading
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

TAR_BLOCK = 512
HEADER_BATCH = 512
"""Headers checked per numpy pass: large enough to amortise it, small enough to stay in cache."""

_HEADER = np.dtype(
    {
        "names": ["name", "magic", "has_prefix", "prefix"],
        "formats": ["S100", "S6", "u1", "S155"],
        "offsets": [0, 257, 345, 345],
        "itemsize": TAR_BLOCK,
    }
)
Headers = NDArray[np.uint8]
"""One header a row."""
SIZE_OFFSET = 124
unpack_size_and_type = struct.Struct("11sB20xB").unpack_from
"""Eleven digits of the size, the byte that ends them, and, further on, the type."""
_OCTAL_PLACES = np.arange(15, -1, -3, dtype=np.uint32)[:, None]


class HeaderPage(threading.local):
    """Room for one batch of headers, kept from walk to walk: taking it anew costs more than filling it."""

    def __init__(self) -> None:
        self.buffer = bytearray(HEADER_BATCH * TAR_BLOCK)
        view = memoryview(self.buffer)
        self.rows = [[view[at : at + TAR_BLOCK]] for at in range(0, HEADER_BATCH * TAR_BLOCK, TAR_BLOCK)]
        gap = memoryview(bytearray(TAR_BLOCK))
        self.pairs = [[*row, gap, *after] for row, after in pairwise(self.rows)] + self.rows[-1:]
        """Each header's room with that of the next, for members whose data is one block: both come with one read."""
        self.headers: Headers = np.frombuffer(self.buffer, np.uint8).reshape(-1, TAR_BLOCK)


header_page = HeaderPage()


def checksums_match(rows: Headers) -> NDArray[np.bool_]:
    """For each header, whether the sum of its bytes is what its checksum field says."""
    stated = rows[:, 148:156].T.copy()  # all first digits side by side, then all second ones: numpy's stride
    # 512 bytes below 128 sum up to less than 65536, and 16 bits are added twice as fast
    width = np.uint16 if rows.max() < 128 else np.uint32
    # the sum is taken with blanks in the place of the checksum
    total = rows.sum(axis=1, dtype=width) - stated.sum(axis=0, dtype=np.uint32) + 8 * 32
    usual = (total >> _OCTAL_PLACES & 7) + 48
    matches: NDArray[np.bool_] = (stated[:6] == usual).all(axis=0) & (stated[6] == 0)
    for row in np.flatnonzero(~matches):
        matches[row] = _checksum_matches(rows[row], int(total[row]))
    return matches


def _checksum_matches(row: NDArray[np.uint8], total: int) -> bool:
    """The same for other spellings of the field, and for sums over signed bytes."""
    text = row[148:156].tobytes().strip(b" \0")
    if not text.isdigit() or b"8" in text or b"9" in text:
        return False
    signed = total - 256 * int((np.delete(row, range(148, 156)) > 127).sum())
    return int(text, 8) in (total, signed)


def decode_names(headers: Headers) -> list[str]:
    """The names of a run of headers: prefix and name joined, where there is a prefix."""
    rows = headers.reshape(-1).view(_HEADER)
    names: list[bytes] = rows["name"].tolist()
    joined = b"\n".join(names)
    if b"\0" in joined or joined.count(b"\n") != len(names) - 1 or not joined.isascii():
        texts = [decode_text(name.split(b"\0", 1)[0]) for name in names]
    else:
        texts = joined.decode("ascii").split("\n")
    for row in np.flatnonzero(rows["has_prefix"]):
        if rows["magic"][row] == b"ustar":  # GNU tar keeps times in that place
            texts[row] = decode_text(rows["prefix"][row].split(b"\0", 1)[0]) + "/" + texts[row]
    return texts


def as_header_rows(header: bytes) -> Headers:
    """A single header as a page of one; a short one is filled up."""
    return np.frombuffer(header.ljust(TAR_BLOCK, b"\0"), np.uint8).reshape(1, TAR_BLOCK)


def decode_text(raw: bytes) -> str:
    """A member's name: only a key to us, so bytes that are not UTF-8 become visible escapes."""
    return raw.decode("utf-8", "backslashreplace")


def guess_format(header: bytes) -> str:
    """What something that is no header may be instead; empty if nobody can tell."""
    head = header[:64].lstrip().lower()
    if head.startswith(b"\x1f\x8b"):
        return ", which is gzip (name it .tar.gz)"
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return ", which is zstd (name it .tar.zst)"
    if head.startswith((b"<!doctype", b"<html", b"<?xml")):
        return ", a web page (did a download fail?)"
    return ""

"""Walks the headers of a tar: ustar, GNU long names, PAX, base-256 sizes. Never extracts.

Written by hand because stdlib `tarfile` yields members without end on a crafted file, and spends most of its time on
fields we do not need. The walk is in two gears: plain members are hopped over one size field at a time and their
headers checked by the hundred in numpy; anything else (long names, PAX, odd sizes) is parsed singly.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.errors import StorageError, TarError

BLOCK = 512
MAX_EXTENSION_BYTES = 1 << 20
"""Longest long-name or PAX record we read: Linux paths end at 4096 bytes, so 1 MiB is already absurd."""
MAX_MEMBER_BYTES = 1 << 60
"""No file is that long; past it, offsets no longer fit the 64 bits that the system and numpy have for them."""
BATCH = 512
"""Headers checked per numpy pass: large enough to amortise it, small enough to stay in cache."""

_HEADER = np.dtype(
    {
        "names": ["name", "magic", "has_prefix", "prefix"],
        "formats": ["S100", "S6", "u1", "S155"],
        "offsets": [0, 257, 345, 345],
        "itemsize": BLOCK,
    }
)
_REGULAR = frozenset(b"0\0007")
_WITHOUT_DATA = {0x31: "hard link", 0x32: "symbolic link", 0x33: "device", 0x34: "device", 0x36: "fifo"}
_DIRECTORY = 0x35
_GNU_LONG_NAME, _GNU_LONG_LINK, _PAX, _PAX_GLOBAL = b"LKxg"
_UNREADABLE = {0x53: "a GNU sparse file", 0x4D: "the continuation of a multi-volume archive"}
_ZEROS = bytes(BLOCK)
Headers = NDArray[np.uint8]
"""One header a row."""
_size_and_kind = struct.Struct("11sB20xB").unpack_from
"""Eleven digits of the size, the byte that ends them, and, further on, the type."""
_OCTAL_PLACES = np.arange(15, -1, -3, dtype=np.uint32)


class _Page(threading.local):
    """Room for one batch of headers, kept from walk to walk: taking it anew costs more than filling it."""

    def __init__(self) -> None:
        self.buffer = bytearray(BATCH * BLOCK)
        view = memoryview(self.buffer)
        self.rows = [[view[at : at + BLOCK]] for at in range(0, BATCH * BLOCK, BLOCK)]
        self.headers: Headers = np.frombuffer(self.buffer, np.uint8).reshape(-1, BLOCK)


_page = _Page()


class Source(Protocol):
    """Bytes by offset. A compressed stream only ever goes forward, and knows its end when it gets there."""

    @property
    def end(self) -> int:
        """Length of the data; for a stream, as far as it has been read."""
        ...

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end."""
        ...

    def filler(self) -> Callable[[list[memoryview], int], int]:
        """Reads at an offset into the given memory, as quick as can be; fewer bytes are for `read_at` to judge."""
        ...


@dataclass(slots=True)
class Members:
    """The regular files of a tar, in order, as columns; what is not a file is only noted."""

    names: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    """First byte of each member's data."""
    lengths: list[int] = field(default_factory=list)
    notes: list[tuple[str, int, str]] = field(default_factory=list)
    """(name, header offset, what it is) of links, devices and other things we do not follow."""

    def __len__(self) -> int:
        return len(self.names)


def walk(source: Source, shard: str) -> Members:
    """All members of the tar, or a TarError that says at which header it broke."""
    try:
        return _Walk(source, shard).run()
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"cannot read: {error.strerror}", shard=shard, stage="scan") from error


class _Walk:
    """The state of one walk: where we are, what the headers so far said, what a PAX header promised."""

    def __init__(self, source: Source, shard: str) -> None:
        self.source = source
        self.shard = shard
        self.found = Members()
        self.offset = 0
        self.data_end = 0
        """Where the last member's data ends: the tar is whole only if the file reaches it."""
        self.promised = False
        """Whether the last header was an extended one: it speaks of a member that must follow."""
        self.next_name: str | None = None
        self.next_size: int | None = None

    def run(self) -> Members:
        while True:
            header = self._run_of_plain_members()
            if self._is_end(header):
                return _without_folders(self.found)
            self._one_by_one(header)

    # -- first gear: runs of plain members ------------------------------------------------------------------

    def _run_of_plain_members(self) -> bytes:
        """Hop over plain members until something else comes, and return its header."""
        while not self.promised:
            header = self._hop_along()
            if header is not None:
                return header
        return self.source.read_at(self.offset, BLOCK)

    def _hop_along(self) -> bytes | None:
        """One batch of hops; the header that ended it, if one did."""
        page = _page
        sizes: list[int] = []
        buffer, fill = page.buffer, self.source.filler()
        start = offset = self.offset
        at = count = 0
        for row in page.rows:
            count = fill(row, offset)
            digits, end, kind = _size_and_kind(buffer, at + 124)
            # int() would also take '-1', '+1' and '1_0': only eleven digits and an end go the short way
            if count < BLOCK or kind not in _REGULAR or end > 32 or not digits.isdigit():
                break
            try:
                size = int(digits, 8)
            except ValueError:
                break
            sizes.append(size)
            offset += size + 1023 & ~511  # its header and its data, padded
            at += BLOCK
        self.offset = offset
        other = None if len(sizes) == BATCH else bytes(buffer[at : at + count])
        if sizes:
            self._keep(page.headers[: len(sizes)], sizes, start)
        if other is not None and count < BLOCK:  # the end, or a read that was cut short
            other += self.source.read_at(offset + count, BLOCK - count)
        return other

    def _keep(self, headers: Headers, sizes: list[int], start: int) -> None:
        """Check a run of headers, the first of which lies at `start`, and note their members."""
        lengths = np.array(sizes, np.int64)
        steps = BLOCK + (lengths + 511 & ~511)
        offsets = start + BLOCK + np.cumsum(steps) - steps
        good = _checksums_match(headers)
        if not good.all():
            bad = int(np.argmin(good))
            self._refuse_header(headers[bad].tobytes(), int(offsets[bad]) - BLOCK)
        self.data_end = int(offsets[-1]) + sizes[-1]
        self.found.names += _names(headers)
        self.found.offsets += offsets.tolist()
        self.found.lengths += sizes

    # -- second gear: one header at a time -------------------------------------------------------------------

    def _one_by_one(self, header: bytes) -> None:
        """Parse the header that first gear would not take."""
        if not _checksums_match(_one(header))[0]:
            self._refuse_header(header, self.offset)
        kind, size = header[156], self._size(header)
        if kind in (_GNU_LONG_NAME, _GNU_LONG_LINK, _PAX, _PAX_GLOBAL):
            self._extension(kind, size)
        else:
            self._member(header, kind, size if self.next_size is None else self.next_size)

    def _member(self, header: bytes, kind: int, size: int) -> None:
        name = self.next_name if self.next_name is not None else _names(_one(header))[0]
        self.promised, self.next_name, self.next_size = False, None, None
        if kind in _UNREADABLE:
            raise self._broken(f"member is {_UNREADABLE[kind]}", name)
        if size > MAX_MEMBER_BYTES:
            raise self._broken(f"member claims {size} bytes", name)
        start = self.offset + BLOCK
        if kind in _WITHOUT_DATA:
            self.found.notes.append((name, self.offset, _WITHOUT_DATA[kind]))
            size = 0
        elif kind == _DIRECTORY:
            size = 0
        elif kind not in _REGULAR:
            self.found.notes.append((name, self.offset, f"member of unknown type {chr(kind)!r}"))
        else:
            self.found.names.append(name)
            self.found.offsets.append(start)
            self.found.lengths.append(size)
        self._advance(size)

    def _extension(self, kind: int, size: int) -> None:
        """A header that says something about the next one."""
        if size > MAX_EXTENSION_BYTES:
            raise self._broken(f"extended header claims {size} bytes, more than {MAX_EXTENSION_BYTES}")
        data = self.source.read_at(self.offset + BLOCK, size)
        if len(data) < size:
            raise self._broken("file ends inside an extended header")
        self.promised = self.promised or kind != _PAX_GLOBAL
        if kind == _GNU_LONG_NAME:
            self.next_name = _text(data.split(b"\0", 1)[0])
        elif kind == _PAX:
            self._pax(data)
        self._advance(size)

    def _pax(self, data: bytes) -> None:
        for keyword, value in self._pax_records(data):
            if keyword == b"path":
                self.next_name = _text(value)
            elif keyword == b"size":
                if not value.isdigit() or len(value) > 20:
                    raise self._broken(f"PAX size {value[:24]!r} is not a number")
                self.next_size = int(value)
            elif keyword.startswith(b"GNU.sparse."):
                raise self._broken("member is a GNU sparse file")

    def _pax_records(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Records of the form '<length> <keyword>=<value>\\n', the length counting all of it."""
        at = 0
        while at < len(data) and data[at] != 0:
            space = data.find(b" ", at, at + 8)
            digits = data[at:space]
            end = at + int(digits) if space > at and digits.isdigit() else 0
            keyword, equals, value = data[space + 1 : end - 1].partition(b"=")
            if not space < end <= len(data) or data[end - 1 : end] != b"\n" or not equals:
                raise self._broken("malformed PAX record")
            yield keyword, value
            at = end

    def _advance(self, size: int) -> None:
        self.data_end = self.offset + BLOCK + size
        self.offset += BLOCK + (size + 511 & ~511)

    def _size(self, header: bytes) -> int:
        raw = header[124:136]
        if raw[0] & 0x80:  # base-256: the first bit is the flag, the next the sign
            if raw[0] & 0x40:
                raise self._broken("member claims a negative size", _names(_one(header))[0])
            return int.from_bytes(bytes([raw[0] & 0x7F]) + raw[1:])
        digits = raw.split(b"\0", 1)[0].strip(b" ")
        if digits and (not digits.isdigit() or b"8" in digits or b"9" in digits):
            raise self._broken(f"size field {bytes(raw)!r} is not an octal number", _names(_one(header))[0])
        return int(digits or b"0", 8)

    # -- the end, and errors ---------------------------------------------------------------------------------

    def _is_end(self, header: bytes) -> bool:
        """A zero block, or a file that stops exactly after a whole member."""
        if len(header) == BLOCK:
            if header != _ZEROS:
                return False
            self._refuse_lost_member()
            self._note_what_follows()
            return True
        if self.source.end == 0:
            raise TarError("is empty (0 bytes)", shard=self.shard, stage="scan", advice="Copy it again.")
        if self.data_end > self.source.end:
            raise TarError(
                f"is cut short: the last member should end at byte {self.data_end}, the data ends at {self.source.end}",
                shard=self.shard,
                member=self.found.names[-1] if self.found.names else None,
                offset=self.data_end,
                stage="scan",
                advice="Copy the shard again.",
            )
        if header.strip(b"\0"):
            if self.offset == 0:
                self._refuse_header(header, 0)
            raise self._broken("file ends inside a header")
        self._refuse_lost_member()
        return True

    def _refuse_lost_member(self) -> None:
        if self.promised:
            raise self._broken("the member that an extended header announces is missing")

    def _note_what_follows(self) -> None:
        """tar pads with zeros to a record; anything else after the end mark is data nobody will see."""
        tail = self.source.read_at(self.offset + BLOCK, 10240)
        if tail.strip(b"\0"):
            self.found.notes.append(("", self.offset, "data after the end-of-archive mark"))

    def _refuse_header(self, header: bytes, offset: int) -> None:
        if offset == 0:
            raise TarError(
                f"is not a tar: it starts with {header[:16]!r}{_looks_like(header)}",
                shard=self.shard,
                offset=0,
                stage="scan",
                advice="Copy or download it again.",
            )
        raise TarError(
            "header checksum does not match",
            shard=self.shard,
            member=_names(_one(header))[0] or None,
            offset=offset,
            stage="scan",
            advice="The shard is damaged from here on; copy it again, or repack what lies before.",
        )

    def _broken(self, reason: str, member: str | None = None) -> TarError:
        return TarError(
            reason,
            shard=self.shard,
            member=member if self.next_name is None else self.next_name,
            offset=self.offset,
            stage="scan",
            advice="Copy the shard again, or repack it with 'tar --format=ustar'.",
        )


def _without_folders(found: Members) -> Members:
    """Before ustar a directory had no type of its own: it is an empty file whose name ends in a slash."""
    if 0 not in found.lengths:
        return found
    kept = [at for at, name in enumerate(found.names) if found.lengths[at] or not name.endswith("/")]
    return Members(
        [found.names[at] for at in kept],
        [found.offsets[at] for at in kept],
        [found.lengths[at] for at in kept],
        found.notes,
    )


def _checksums_match(rows: Headers) -> NDArray[np.bool_]:
    """For each header, whether the sum of its bytes is what its checksum field says."""
    stated = rows[:, 148:156]
    # the sum is taken with blanks in the place of the checksum
    total = rows.sum(axis=1, dtype=np.uint32) - stated.sum(axis=1, dtype=np.uint32) + 8 * 32
    usual = (total[:, None] >> _OCTAL_PLACES & 7) + 48
    matches: NDArray[np.bool_] = (stated[:, :6] == usual).all(axis=1) & (stated[:, 6] == 0)
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


def _names(headers: Headers) -> list[str]:
    """The names of a run of headers: prefix and name joined, where there is a prefix."""
    rows = headers.reshape(-1).view(_HEADER)
    names: list[bytes] = rows["name"].tolist()
    joined = b"\n".join(names)
    if b"\0" in joined or joined.count(b"\n") != len(names) - 1 or not joined.isascii():
        texts = [_text(name.split(b"\0", 1)[0]) for name in names]
    else:
        texts = joined.decode("ascii").split("\n")
    for row in np.flatnonzero(rows["has_prefix"]):
        if rows["magic"][row] == b"ustar":  # GNU tar keeps times in that place
            texts[row] = _text(rows["prefix"][row].split(b"\0", 1)[0]) + "/" + texts[row]
    return texts


def _one(header: bytes) -> Headers:
    return np.frombuffer(header.ljust(BLOCK, b"\0"), np.uint8).reshape(1, BLOCK)


def _text(raw: bytes) -> str:
    """A member's name: only a key to us, so bytes that are not UTF-8 become visible escapes."""
    return raw.decode("utf-8", "backslashreplace")


def _looks_like(header: bytes) -> str:
    head = header[:64].lstrip().lower()
    if head.startswith(b"\x1f\x8b"):
        return ", which is gzip (name it .tar.gz)"
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return ", which is zstd (name it .tar.zst)"
    if head.startswith((b"<!doctype", b"<html", b"<?xml")):
        return ", a web page (did a download fail?)"
    return ""

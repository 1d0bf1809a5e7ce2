"""Walks the headers of a tar: ustar, GNU long names, PAX, base-256 sizes. Never extracts.

Written by hand because stdlib `tarfile` yields members without end on a crafted file, and spends most of its time on
fields we do not need. The walk is in two gears: plain members are hopped over one size field at a time and their
headers checked by the hundred in numpy; anything else (long names, PAX, odd sizes) is parsed singly.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np

from penstock.errors import StorageError, TarError
from penstock.shards.tar_header import (
    HEADER_BATCH,
    SIZE_OFFSET,
    TAR_BLOCK,
    Headers,
    as_header_rows,
    checksums_match,
    decode_names,
    decode_text,
    guess_format,
    header_page,
    unpack_size_and_type,
)

MAX_EXTENSION_BYTES = 1 << 20
"""Longest long-name or PAX record we read: Linux paths end at 4096 bytes, so 1 MiB is already absurd."""
MAX_MEMBER_BYTES = 1 << 60
"""No file is that long; past it, offsets no longer fit the 64 bits that the system and numpy have for them."""

_FILE = 0x30
_REGULAR = frozenset(b"0\0007")
_WITHOUT_DATA = {0x31: "hard link", 0x32: "symbolic link", 0x33: "device", 0x34: "device", 0x36: "fifo"}
_DIRECTORY = 0x35
_GNU_LONG_NAME, _GNU_LONG_LINK, _PAX, _PAX_GLOBAL = b"LKxg"
_UNREADABLE = {0x53: "a GNU sparse file", 0x4D: "the continuation of a multi-volume archive"}
_ZEROS = bytes(TAR_BLOCK)
_ONE_BLOCK_STEP = 2 * TAR_BLOCK
"""From one header to the next where the data is a single block."""
_HEADER_PAIR = _ONE_BLOCK_STEP + TAR_BLOCK
"""What one read brings when it selections the next header along."""


Int64Array: TypeAlias = "array[int]"
"""64 bits each, side by side: numpy looks at them without copying."""


class ByteSource(Protocol):
    """Bytes by offset. A compressed stream only ever goes forward, and knows its end when it gets there."""

    @property
    def end(self) -> int:
        """Length of the data; for a stream, as far as it has been read."""
        ...

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end."""
        ...

    def raw_reader(self) -> Callable[[list[memoryview], int], int]:
        """Reads at an offset into the given memory, as quick as can be; fewer bytes are for `read_at` to judge."""
        ...


@dataclass(slots=True)
class TarMembers:
    """The regular files of a tar, in order, as columns; what is not a file is only noted."""

    names: list[str] = field(default_factory=list)
    offsets: Int64Array = field(default_factory=lambda: array("q"))
    """First byte of each member's data."""
    lengths: Int64Array = field(default_factory=lambda: array("q"))
    other_members: list[tuple[str, int, str]] = field(default_factory=list)
    """(name, header offset, what it is) of links, devices and other things we do not follow."""

    def __len__(self) -> int:
        return len(self.names)


def walk_tar(source: ByteSource, shard: str) -> TarMembers:
    """All members of the tar, or a TarError that says at which header it broke."""
    try:
        return _TarWalk(source, shard).run()
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"cannot read: {error.strerror}", shard=shard, stage="scan") from error


class _TarWalk:
    """The state of one walk: where we are, what the headers so far said, what a PAX header promised."""

    def __init__(self, source: ByteSource, shard: str) -> None:
        self.source = source
        self.shard = shard
        self.found = TarMembers()
        self.offset = 0
        self.data_end = 0
        """Where the last member's data ends: the tar is whole only if the file reaches it."""
        self.promised = False
        """Whether the last header was an extended one: it speaks of a member that must follow."""
        self.tiny = False
        """Whether data of a single block is frequent: a label, a caption. Then two headers are read at once."""
        self.next_name: str | None = None
        self.next_size: int | None = None

    def run(self) -> TarMembers:
        while True:
            header = self._run_of_plain_members()
            if self._is_end(header):
                return _without_directories(self.found)
            self._one_by_one(header)

    # -- first gear: runs of plain members ------------------------------------------------------------------

    def _run_of_plain_members(self) -> bytes:
        """Hop over plain members until something else comes, and return its header."""
        while not self.promised:
            header = self._hop_along()
            if header is not None:
                return header
        return self.source.read_at(self.offset, TAR_BLOCK)

    def _hop_along(self) -> bytes | None:
        """One batch of hops; the header that ended it, if one did."""
        sizes: list[int] = []
        buffer, fill = header_page.buffer, self.source.raw_reader()
        start = offset = self.offset
        count = step = 0
        at = SIZE_OFFSET
        for rows in header_page.pairs if self.tiny else header_page.rows:
            if step == _ONE_BLOCK_STEP and count == _HEADER_PAIR:
                count = TAR_BLOCK  # this header came along with the last one
            else:
                try:
                    count = fill(rows, offset)
                except StorageError:
                    raise
                except OSError:  # `read_at` tries again where that helps, and says what is wrong where it does not
                    count = 0
            digits, end, kind = unpack_size_and_type(buffer, at)
            # int() would also take '-1', '+1' and '1_0': only eleven digits and an end go the short way
            if count < TAR_BLOCK or (kind != _FILE and kind not in _REGULAR) or end > 32 or not digits.isdigit():
                break
            try:
                size = int(digits, 8)
            except ValueError:
                break
            sizes.append(size)
            step = size + 1023 & ~511  # its header and its data, padded
            offset += step
            at += TAR_BLOCK
        self.offset = offset
        at -= SIZE_OFFSET
        other = None if len(sizes) == HEADER_BATCH else bytes(buffer[at : at + min(count, TAR_BLOCK)])
        if sizes:
            self._keep(header_page.headers[: len(sizes)], sizes, start)
        if other is not None and count < TAR_BLOCK:  # the end, or a read that was cut short
            other += self.source.read_at(offset + count, TAR_BLOCK - count)
        return other

    def _keep(self, headers: Headers, sizes: list[int], start: int) -> None:
        """Check a run of headers, the first of which lies at `start`, and note their members."""
        lengths = np.array(sizes, np.int64)
        steps = TAR_BLOCK + (lengths + 511 & ~511)
        offsets = start + TAR_BLOCK + np.cumsum(steps) - steps
        good = checksums_match(headers)
        if not good.all():
            bad = int(np.argmin(good))
            self._refuse_header(headers[bad].tobytes(), int(offsets[bad]) - TAR_BLOCK)
        self.data_end = int(offsets[-1]) + sizes[-1]
        self.tiny = 4 * int(np.count_nonzero(steps == _ONE_BLOCK_STEP)) > len(sizes)
        self.found.names += decode_names(headers)
        self.found.offsets.frombytes(offsets.tobytes())
        self.found.lengths.frombytes(lengths.tobytes())

    # -- second gear: one header at a time -------------------------------------------------------------------

    def _one_by_one(self, header: bytes) -> None:
        """Parse the header that first gear would not take."""
        if not checksums_match(as_header_rows(header))[0]:
            self._refuse_header(header, self.offset)
        kind, size = header[156], self._size(header)
        if kind in (_GNU_LONG_NAME, _GNU_LONG_LINK, _PAX, _PAX_GLOBAL):
            self._extension(kind, size)
        else:
            self._member(header, kind, size if self.next_size is None else self.next_size)

    def _member(self, header: bytes, kind: int, size: int) -> None:
        name = self.next_name if self.next_name is not None else decode_names(as_header_rows(header))[0]
        self.promised, self.next_name, self.next_size = False, None, None
        if kind in _UNREADABLE:
            raise self._broken(f"member is {_UNREADABLE[kind]}", name)
        if size > MAX_MEMBER_BYTES:
            raise self._broken(f"member claims {size} bytes", name)
        start = self.offset + TAR_BLOCK
        if kind in _WITHOUT_DATA:
            self.found.other_members.append((name, self.offset, _WITHOUT_DATA[kind]))
            size = 0
        elif kind == _DIRECTORY:
            size = 0
        elif kind not in _REGULAR:
            self.found.other_members.append((name, self.offset, f"member of unknown type {chr(kind)!r}"))
        else:
            self.found.names.append(name)
            self.found.offsets.append(start)
            self.found.lengths.append(size)
        self._advance(size)

    def _extension(self, kind: int, size: int) -> None:
        """A header that says something about the next one."""
        if size > MAX_EXTENSION_BYTES:
            raise self._broken(f"extended header claims {size} bytes, more than {MAX_EXTENSION_BYTES}")
        data = self.source.read_at(self.offset + TAR_BLOCK, size)
        if len(data) < size:
            raise self._broken("file ends inside an extended header")
        self.promised = self.promised or kind != _PAX_GLOBAL
        if kind == _GNU_LONG_NAME:
            self.next_name = decode_text(data.split(b"\0", 1)[0])
        elif kind == _PAX:
            self._pax(data)
        self._advance(size)

    def _pax(self, data: bytes) -> None:
        for keyword, value in self._pax_records(data):
            if keyword == b"path":
                self.next_name = decode_text(value)
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
        self.data_end = self.offset + TAR_BLOCK + size
        self.offset += TAR_BLOCK + (size + 511 & ~511)

    def _size(self, header: bytes) -> int:
        raw = header[124:136]
        if raw[0] & 0x80:  # base-256: the first bit is the flag, the next the sign
            if raw[0] & 0x40:
                raise self._broken("member claims a negative size", decode_names(as_header_rows(header))[0])
            return int.from_bytes(bytes([raw[0] & 0x7F]) + raw[1:])
        digits = raw.split(b"\0", 1)[0].strip(b" ")
        if digits and (not digits.isdigit() or b"8" in digits or b"9" in digits):
            raise self._broken(
                f"size field {bytes(raw)!r} is not an octal number", decode_names(as_header_rows(header))[0]
            )
        return int(digits or b"0", 8)

    # -- the end, and errors ---------------------------------------------------------------------------------

    def _is_end(self, header: bytes) -> bool:
        """A zero block, or a file that stops exactly after a whole member."""
        if len(header) == TAR_BLOCK:
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
        tail = self.source.read_at(self.offset + TAR_BLOCK, 10240)
        if tail.strip(b"\0"):
            self.found.other_members.append(("", self.offset, "data after the end-of-archive mark"))

    def _refuse_header(self, header: bytes, offset: int) -> None:
        if offset == 0:
            raise TarError(
                f"is not a tar: it starts with {header[:16]!r}{guess_format(header)}",
                shard=self.shard,
                offset=0,
                stage="scan",
                advice="Copy or download it again.",
            )
        raise TarError(
            "header checksum does not match",
            shard=self.shard,
            member=decode_names(as_header_rows(header))[0] or None,
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


def _without_directories(found: TarMembers) -> TarMembers:
    """Before ustar a directory had no type of its own: it is an empty file whose name ends in a slash."""
    if np.frombuffer(found.lengths, np.int64).all():
        return found
    kept = [at for at, name in enumerate(found.names) if found.lengths[at] or not name.endswith("/")]
    return TarMembers(
        [found.names[at] for at in kept],
        array("q", [found.offsets[at] for at in kept]),
        array("q", [found.lengths[at] for at in kept]),
        found.other_members,
    )

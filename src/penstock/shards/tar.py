"""Walk the headers of a tar (ustar, GNU long names, PAX, base-256 sizes) without extracting anything.

The standard library's `tarfile` yields members without end on a crafted file, and spends most of its time on fields
that are not needed here. This walk has a fast path and a slow path: plain members are stepped over by their size
fields, and their headers are checked in numpy by the hundred; any other header (long names, PAX, links, unusual sizes)
is parsed singly.

A hard link is a member with the data of an earlier one. What lies behind an end-of-archive mark is read as another tar
(`cat a.tar b.tar`, `tar -A`). Members whose data cannot be read, such as sparse files, are listed with the reason.
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
"""Longest long-name or PAX record that is read. Linux paths end at 4096 bytes, so 1 MiB is far more than needed."""
IGNORED = "ignored: "
"""Begins the description of a member that belongs to no sample, which is no flaw."""
MAX_MEMBER_BYTES = 1 << 60
"""Largest member. No file is that long, and larger offsets would not fit the 64 bits of the system and of numpy."""

_FILE = 0x30
_REGULAR = frozenset(b"0\0007")
_HARD_LINK, _SYMBOLIC_LINK, _DIRECTORY = b"125"
_GNU_DUMP_DIRECTORY, _GNU_SPARSE, _GNU_CONTINUATION = b"DSM"
_WITHOUT_DATA = {0x33: "device", 0x34: "device", 0x35: IGNORED + "directory", 0x36: "fifo"}
_GNU_LONG_NAME, _GNU_LONG_LINK, _PAX, _SUN_PAX, _PAX_GLOBAL = b"LKxXg"
_SPARSE = "is a GNU sparse file"
_ZEROS = bytes(TAR_BLOCK)
_ZEROS_AT_ONCE = 64 << 10
"""Bytes behind an end-of-archive mark that are read at once. Most tars are padded to a multiple of 10 KiB."""
_ONE_BLOCK_STEP = 2 * TAR_BLOCK
"""Bytes from one header to the next if the member's data is a single tar block."""
_HEADER_PAIR = _ONE_BLOCK_STEP + TAR_BLOCK
"""Bytes of one read that includes the next header."""


Int64Array: TypeAlias = "array[int]"
"""An array of 64-bit integers, which numpy views without a copy."""


class ByteSource(Protocol):
    """Bytes that are read by offset. A compressed stream goes forward only, and knows its end when it reaches it."""

    @property
    def end(self) -> int:
        """Length of the data; for a stream, the position up to which it has been read."""
        ...

    def read_at(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes; fewer only at the end."""
        ...

    def raw_reader(self) -> Callable[[list[memoryview], int], int]:
        """Return the fastest function that reads at an offset into memory; a short read is repeated by `read_at`."""
        ...


@dataclass(slots=True)
class TarMembers:
    """The regular files of a tar in order, as columns, and a list of the other members."""

    names: list[str] = field(default_factory=list)
    offsets: Int64Array = field(default_factory=lambda: array("q"))
    """First byte of each member's data."""
    lengths: Int64Array = field(default_factory=lambda: array("q"))
    other_members: list[tuple[str, int, str]] = field(default_factory=list)
    """(name, header offset, description) of devices and other members that are no files, and of ignored members."""
    unreadable: dict[int, str] = field(default_factory=dict)
    """Why a member's data cannot be read, by the member's offset. Such members have length 0."""

    def __len__(self) -> int:
        return len(self.names)


def walk_tar(source: ByteSource, shard: str) -> TarMembers:
    """Return all members of the tar; raise TarError with the offset of the header that is invalid."""
    try:
        return _TarWalk(source, shard).run()
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"cannot read: {error.strerror}", shard=shard, stage="scan") from error


@dataclass(slots=True)
class _Announced:
    """Properties of the next member that extended headers announce; None where they announce none."""

    name: str | None = None
    size: int | None = None
    link: str | None = None
    """The member that a link names."""
    is_sparse: bool = False


class _TarWalk:
    """The state of one walk: its position, the members so far, and what extended headers say of the next member."""

    def __init__(self, source: ByteSource, shard: str) -> None:
        self.source = source
        self.shard = shard
        self.members = TarMembers()
        self.offset = 0
        self.tar_start = 0
        """Offset of the first header of the file, or of the first one behind an end-of-archive mark."""
        self.data_end = 0
        """End of the last member's data: the tar is complete only if the file reaches it."""
        self.member_expected = False
        """Whether an extended header describes a member that must follow."""
        self.reads_pairs = False
        """Whether two headers are read at once, because data of a single block (labels, captions) is frequent."""
        self.announced = _Announced()
        self.positions: dict[str, int] = {}
        """The position of the last member of each name, among the first `members_named` members."""
        self.members_named = 0

    def run(self) -> TarMembers:
        while True:
            header = self._step_over_plain_members()
            if header == _ZEROS:
                self._refuse_missing_member()
                header = self._header_behind_zeros()
            if len(header) < TAR_BLOCK:
                self._check_end(header)
                return _in_order(self.members)
            self._parse_header(header)

    # -- fast path: runs of plain members ---------------------------------------------------------------------

    def _step_over_plain_members(self) -> bytes:
        """Step over plain members, and return the first header that is something else."""
        while not self.member_expected:
            header = self._read_run()
            if header is not None:
                return header
        return self.source.read_at(self.offset, TAR_BLOCK)

    def _read_run(self) -> bytes | None:
        """Step over one batch of headers; return the header that ended it, or None if the batch is full."""
        sizes: list[int] = []
        buffer, read = header_page.buffer, self.source.raw_reader()
        start = offset = self.offset
        count = step = 0
        size_at = SIZE_OFFSET
        for rows in header_page.pairs if self.reads_pairs else header_page.rows:
            if step == _ONE_BLOCK_STEP and count == _HEADER_PAIR:
                count = TAR_BLOCK  # this header was read together with the last one
            else:
                try:
                    count = read(rows, offset)
                except StorageError:
                    raise
                except OSError:  # `read_at` repeats the read below, and raises the error if it persists
                    count = 0
            digits, end, kind = unpack_size_and_type(buffer, size_at)
            # int() would also accept '-1', '+1' and '1_0': only eleven digits and a terminator take the fast path
            if count < TAR_BLOCK or (kind != _FILE and kind not in _REGULAR) or end > 32 or not digits.isdigit():
                break
            try:
                size = int(digits, 8)
            except ValueError:
                break
            sizes.append(size)
            step = size + 1023 & ~511  # its header and its data, padded
            offset += step
            size_at += TAR_BLOCK
        self.offset = offset
        header_at = size_at - SIZE_OFFSET
        other = None if len(sizes) == HEADER_BATCH else bytes(buffer[header_at : header_at + min(count, TAR_BLOCK)])
        if sizes:
            self._append_run(header_page.headers[: len(sizes)], sizes, start)
        if other is not None and count < TAR_BLOCK:  # the end, or a short read
            other += self.source.read_at(offset + count, TAR_BLOCK - count)
        return other

    def _append_run(self, headers: Headers, sizes: list[int], start: int) -> None:
        """Check a run of headers, the first of which lies at offset `start`, and append their members."""
        lengths = np.array(sizes, np.int64)
        steps = TAR_BLOCK + (lengths + 511 & ~511)
        offsets = start + TAR_BLOCK + np.cumsum(steps) - steps
        valid = checksums_match(headers)
        if not valid.all():
            bad = int(np.argmin(valid))
            self._refuse_header(headers[bad].tobytes(), int(offsets[bad]) - TAR_BLOCK)
        self.data_end = int(offsets[-1]) + sizes[-1]
        self.reads_pairs = 4 * int(np.count_nonzero(steps == _ONE_BLOCK_STEP)) > len(sizes)
        self.members.names += decode_names(headers)
        self.members.offsets.frombytes(offsets.tobytes())
        self.members.lengths.frombytes(lengths.tobytes())

    # -- slow path: one header at a time ----------------------------------------------------------------------

    def _parse_header(self, header: bytes) -> None:
        """Parse a header that the fast path does not handle."""
        if not checksums_match(as_header_rows(header))[0]:
            self._refuse_header(header, self.offset)
        kind, size = header[156], self._size(header)
        if kind in (_GNU_LONG_NAME, _GNU_LONG_LINK, _PAX, _SUN_PAX, _PAX_GLOBAL):
            self._extension(kind, size)
        else:
            announced, self.announced, self.member_expected = self.announced, _Announced(), False
            self._member(header, kind, size if announced.size is None else announced.size, announced)

    def _member(self, header: bytes, kind: int, size: int, announced: _Announced) -> None:
        name = announced.name if announced.name is not None else decode_names(as_header_rows(header))[0]
        if size > MAX_MEMBER_BYTES:
            raise self._broken(f"member claims {size} bytes", name)
        start = data_start = self.offset + TAR_BLOCK
        if kind in (_HARD_LINK, _SYMBOLIC_LINK):
            size = 0
            link = decode_text(header[157:257].split(b"\0", 1)[0]) if announced.link is None else announced.link
            if kind == _HARD_LINK:
                self._append_hard_link(name, link)
            else:
                self._append_unreadable(name, f"is a symbolic link to {link!r}, which is not followed")
        elif kind in _WITHOUT_DATA:
            size = 0
            self.members.other_members.append((name, self.offset, _WITHOUT_DATA[kind]))
        elif kind == _GNU_SPARSE:
            data_start += self._sparse_header_bytes(header, name)
            self._append_unreadable(name, _SPARSE)
        elif kind == _GNU_CONTINUATION:
            self._append_unreadable(name, "is the continuation of a file in another volume")
        elif kind == _GNU_DUMP_DIRECTORY:  # has data, a list of its files
            self.members.other_members.append((name, self.offset, _WITHOUT_DATA[_DIRECTORY]))
        elif kind not in _REGULAR:
            self.members.other_members.append((name, self.offset, f"member of unknown type {chr(kind)!r}"))
        elif announced.is_sparse:
            self._append_unreadable(name, _SPARSE)
        else:
            self._append(name, start, size)
        self._step_to(data_start, size)

    def _append(self, name: str, start: int, size: int) -> None:
        self.members.names.append(name)
        self.members.offsets.append(start)
        self.members.lengths.append(size)

    def _append_unreadable(self, name: str, reason: str) -> None:
        start = self.offset + TAR_BLOCK
        self._append(name, start, 0)
        self.members.unreadable[start] = reason

    def _append_hard_link(self, name: str, target: str) -> None:
        """Append a member with the data of the last one that has the target's name, as extracting would give it."""
        names = self.members.names
        self.positions.update(zip(names[self.members_named :], range(self.members_named, len(names)), strict=True))
        self.members_named = len(names)
        position = self.positions.get(target)
        if position is None:
            self._append_unreadable(name, f"is a hard link to {target!r}, and no file before it has that name")
        else:
            self._append(name, self.members.offsets[position], self.members.lengths[position])

    def _sparse_header_bytes(self, header: bytes, name: str) -> int:
        """Return the bytes of the further headers of a GNU sparse file, which lie before its data."""
        count, continued = 0, header[482]
        while continued:
            count += TAR_BLOCK
            further = self.source.read_at(self.offset + count, TAR_BLOCK)
            if len(further) < TAR_BLOCK:
                raise self._broken("file ends inside the headers of a sparse file", name)
            continued = further[504]
        return count

    def _extension(self, kind: int, size: int) -> None:
        """Read an extended header, which describes the next member."""
        if size > MAX_EXTENSION_BYTES:
            raise self._broken(f"extended header claims {size} bytes, more than {MAX_EXTENSION_BYTES}")
        data = self.source.read_at(self.offset + TAR_BLOCK, size)
        if len(data) < size:
            raise self._broken("file ends inside an extended header")
        self.member_expected = self.member_expected or kind != _PAX_GLOBAL
        if kind == _GNU_LONG_NAME:
            self.announced.name = decode_text(data.split(b"\0", 1)[0])
        elif kind == _GNU_LONG_LINK:
            self.announced.link = decode_text(data.split(b"\0", 1)[0])
        elif kind != _PAX_GLOBAL:
            self._pax(dict(self._pax_records(data)))
        self._step_to(self.offset + TAR_BLOCK, size)

    def _pax(self, records: dict[bytes, bytes]) -> None:
        name = records.get(b"GNU.sparse.name", records.get(b"path"))
        if name:  # an empty value stands for the one in the header
            self.announced.name = decode_text(name)
        if b"linkpath" in records:
            self.announced.link = decode_text(records[b"linkpath"])
        if b"size" in records:
            size = records[b"size"]
            digits = size.lstrip(b"0")
            if not size.isdigit() or len(digits) > 20:
                raise self._broken(f"PAX size {size[:24]!r} is not a number")
            self.announced.size = int(digits or b"0")
        if any(keyword.startswith(b"GNU.sparse.") for keyword in records):
            self.announced.is_sparse = True

    def _pax_records(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the records '<length> <keyword>=<value>\\n'; the length counts the whole record."""
        start = 0
        while start < len(data) and data[start] != 0:
            space = data.find(b" ", start, start + 8)
            digits = data[start:space]
            end = start + int(digits) if space > start and digits.isdigit() else 0
            keyword, equals, value = data[space + 1 : end - 1].partition(b"=")
            if not space < end <= len(data) or data[end - 1 : end] != b"\n" or not equals:
                raise self._broken("malformed PAX record")
            yield keyword, value
            start = end

    def _step_to(self, data_start: int, size: int) -> None:
        """Step to the header behind this data."""
        self.data_end = data_start + size
        self.offset = data_start + (size + 511 & ~511)

    def _size(self, header: bytes) -> int:
        raw = header[124:136]
        if raw[0] & 0x80:  # base-256: the first bit is the flag, the second the sign
            if raw[0] & 0x40:
                raise self._broken("member claims a negative size", decode_names(as_header_rows(header))[0])
            return int.from_bytes(bytes([raw[0] & 0x7F]) + raw[1:])
        digits = raw.split(b"\0", 1)[0].strip(b" ")
        if digits and (not digits.isdigit() or b"8" in digits or b"9" in digits):
            raise self._broken(
                f"size field {bytes(raw)!r} is not an octal number", decode_names(as_header_rows(header))[0]
            )
        return int(digits or b"0", 8)

    # -- the end, and errors ----------------------------------------------------------------------------------

    def _header_behind_zeros(self) -> bytes:
        """Step over an end-of-archive mark and its padding; return the next header, or what is left of the file."""
        zeros_end = self.offset + TAR_BLOCK
        while True:
            # A stream cannot go back, and knows only the bytes before its position: it is read block by block.
            length = max(TAR_BLOCK, min(_ZEROS_AT_ONCE, self.source.end - zeros_end))
            data = self.source.read_at(zeros_end, length)
            zeros = len(data) - len(data.lstrip(b"\0"))
            if zeros < len(data) or not data:
                break
            zeros_end += len(data)
        first = zeros - zeros % TAR_BLOCK
        self.offset = self.tar_start = zeros_end + first
        return data[first : first + TAR_BLOCK]

    def _check_end(self, header: bytes) -> None:
        """Raise unless the file ends behind a whole member; `header` is what is left of it."""
        if self.source.end == 0:
            raise TarError("is empty (0 bytes)", shard=self.shard, stage="scan", advice="Copy it again.")
        if self.data_end > self.source.end:
            raise TarError(
                f"is cut short: the last member should end at byte {self.data_end}, the data ends at {self.source.end}",
                shard=self.shard,
                member=self.members.names[-1] if self.members.names else None,
                offset=self.data_end,
                stage="scan",
                advice="Copy the shard again.",
            )
        if header.strip(b"\0"):
            if self.offset == self.tar_start:
                self._refuse_header(header, self.offset)
            raise self._broken("file ends inside a header")
        self._refuse_missing_member()

    def _refuse_missing_member(self) -> None:
        if self.member_expected:
            raise self._broken("the member that an extended header announces is missing")

    def _refuse_header(self, header: bytes, offset: int) -> None:
        if offset == 0:
            raise TarError(
                f"is not a tar: it starts with {header[:16]!r}{guess_format(header)}",
                shard=self.shard,
                offset=0,
                stage="scan",
                advice="Copy or download it again.",
            )
        if offset == self.tar_start:
            data = header.lstrip(b"\0")
            raise TarError(
                "has data behind its end-of-archive mark that is not another tar: it starts with "
                f"{data[:16]!r}{guess_format(header)}",
                shard=self.shard,
                offset=offset + len(header) - len(data),
                stage="scan",
                advice="Copy the shard again, or cut it off at this offset if these bytes do not belong to it.",
            )
        raise TarError(
            "header checksum does not match",
            shard=self.shard,
            member=decode_names(as_header_rows(header))[0] or None,
            offset=offset,
            stage="scan",
            advice="The shard is damaged from this offset on; copy it again, or repack the members before it.",
        )

    def _broken(self, reason: str, member: str | None = None) -> TarError:
        return TarError(
            reason,
            shard=self.shard,
            member=member if self.announced.name is None else self.announced.name,
            offset=self.offset,
            stage="scan",
            advice="Copy the shard again, or repack it with 'tar --format=ustar'.",
        )


def _in_order(members: TarMembers) -> TarMembers:
    """Return the members in the order of their data: hard links lie beside their targets."""
    offsets = np.frombuffer(members.offsets, np.int64)
    if (np.diff(offsets) > 0).all():
        return members
    order = np.argsort(offsets, kind="stable").tolist()
    return TarMembers(
        [members.names[i] for i in order],
        array("q", [members.offsets[i] for i in order]),
        array("q", [members.lengths[i] for i in order]),
        members.other_members,
        members.unreadable,
    )

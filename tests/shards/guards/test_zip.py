"""The ZIP guard, with archives by numpy, by zipfile, and by `archive`, which can write false fields."""

import io
import struct
import zipfile
import zlib
from dataclasses import dataclass, field

import numpy as np
import pytest

from penstock.errors import GuardError
from penstock.shards.guards import inspect_zip
from penstock.shards.guards.zip import DEFLATED, MAX_ENTRY_BYTES, STORED

IN_ZIP64 = 0xFFFFFFFF
"""A 32-bit size of which the true value is in the zip64 field."""


@dataclass
class Entry:
    """A file of an archive; `changes` replaces fields of its directory entry, but not of its local header."""

    name: bytes = b"a.npy"
    content: bytes = b"content"
    method: int = STORED
    flags: int = 0
    extra: bytes = b""
    length: int | None = None
    changes: dict = field(default_factory=dict)


def archive(*entries: Entry, comment: bytes = b"", **end_fields) -> bytes:
    """Return a ZIP file; `end_fields` replaces fields of its end record."""
    body, directory = b"", b""
    for entry in entries:
        crc32 = zlib.crc32(entry.content)
        length = len(entry.content) if entry.length is None else entry.length
        true_fields = {
            "flags": entry.flags,
            "method": entry.method,
            "compressed": len(entry.content),
            "length": length,
            "name": entry.name,
            "extra": b"",
            "disk": 0,
            "start": len(body),
        }
        entry_fields = true_fields | entry.changes
        body += struct.pack(
            "<4s5H3L2H",
            b"PK\3\4",
            20,
            entry.flags,
            entry.method,
            0,
            0,
            crc32,
            len(entry.content),
            length,
            len(entry.name),
            len(entry.extra),
        )
        body += entry.name + entry.extra + entry.content
        directory += struct.pack(
            "<4s6H3L5H2L",
            b"PK\1\2",
            20,
            20,
            entry_fields["flags"],
            entry_fields["method"],
            0,
            0,
            crc32,
            entry_fields["compressed"],
            entry_fields["length"],
            len(entry_fields["name"]),
            len(entry_fields["extra"]),
            0,
            entry_fields["disk"],
            0,
            0,
            entry_fields["start"],
        )
        directory += entry_fields["name"] + entry_fields["extra"]
    count = end_fields.get("count", len(entries))
    return (
        body
        + directory
        + struct.pack(
            "<4s4H2LH",
            b"PK\5\6",
            end_fields.get("disk", 0),
            0,
            count,
            count,
            end_fields.get("size", len(directory)),
            end_fields.get("start", len(body)),
            end_fields.get("comment_length", len(comment)),
        )
        + comment
    )


def reason(data: bytes) -> str:
    """Return the reason with which the guard refuses the data."""
    with pytest.raises(GuardError) as caught:
        inspect_zip(data)
    assert caught.value.stage == "guard"
    assert caught.value.advice
    return caught.value.reason


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_numpys_archives_are_accepted_with_the_right_offsets(save, wrap):
    out = io.BytesIO()
    arrays = {"features": np.arange(2000, dtype=np.float16), "edge": np.eye(5)}
    save(out, **arrays)
    data = out.getvalue()
    entries = inspect_zip(wrap(data))
    assert [entry.name for entry in entries] == ["features.npy", "edge.npy"]
    for entry in entries:
        content = data[entry.start : entry.start + entry.compressed_length]
        if entry.method == DEFLATED:
            content = zlib.decompress(content, wbits=-15)
        assert content.startswith(b"\x93NUMPY")
        assert (len(content), zlib.crc32(content)) == (entry.length, entry.crc32)


def test_an_empty_archive_has_no_entries():
    assert inspect_zip(archive()) == ()


def test_comments_of_every_length_are_accepted():
    assert len(inspect_zip(archive(Entry(), comment=b"by hand"))) == 1
    assert len(inspect_zip(archive(Entry(), comment=b"x" * 65535))) == 1


def test_names_are_utf8_when_flagged_and_cp437_when_not():
    data = archive(Entry(name="ü.npy".encode(), flags=0x800), Entry(name="ü.npy".encode("cp437")[:1] + b"2"))
    assert [entry.name for entry in inspect_zip(data)] == ["ü.npy", "ü2"]


def test_sizes_that_follow_the_data_are_taken_from_the_directory():
    class Pipe(io.RawIOBase):
        def __init__(self):
            self.data = b""

        def writable(self):
            return True

        def write(self, data):
            self.data += bytes(data)
            return len(data)

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.npy", b"abc" * 100)
    (entry,) = inspect_zip(pipe.data)
    assert zlib.decompress(pipe.data[entry.start :][: entry.compressed_length], wbits=-15) == b"abc" * 100


def test_zip64_entries_and_end_records_are_read(monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 50)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name in ("a", "b", "c"):
            file.writestr(name, name.encode() * 100)
    data = out.getvalue()
    assert b"PK\6\6" in data
    assert b"PK\6\7" in data
    entries = inspect_zip(data)
    assert [data[entry.start : entry.start + entry.length] for entry in entries] == [
        b"a" * 100,
        b"b" * 100,
        b"c" * 100,
    ]


def test_missing_zip64_sizes_are_refused():
    assert "zip64" in reason(archive(Entry(changes={"length": IN_ZIP64})))
    short = struct.pack("<2HQ", 1, 8, 7)
    assert "zip64" in reason(archive(Entry(changes={"length": IN_ZIP64, "compressed": IN_ZIP64, "extra": short})))


def test_a_huge_zip64_size_is_refused_by_the_cap():
    huge = struct.pack("<2HQ", 1, 8, 2**60)
    assert str(2**60) in reason(archive(Entry(method=DEFLATED, changes={"length": IN_ZIP64, "extra": huge})))


def test_a_32_bit_end_record_that_disagrees_with_the_zip64_record_is_refused(monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 50)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("a", b"a" * 100)
    data = bytearray(out.getvalue())
    data[-12] ^= 1  # the count of entries in the 32-bit record
    assert "disagree" in reason(bytes(data))


@pytest.mark.parametrize("flags", [0x0001, 0x0041, 0x2000])
def test_encrypted_entries_are_refused(flags):
    assert "encrypted" in reason(archive(Entry(flags=flags)))


def test_encryption_flagged_only_in_the_local_header_is_refused():
    assert "disagree" in reason(archive(Entry(flags=1, changes={"flags": 0})))


@pytest.mark.parametrize("method", [12, 14, 93, 99])
def test_unknown_methods_are_refused_by_number(method):
    assert f"method {method}" in reason(archive(Entry(method=method)))


def test_a_real_bzip2_archive_is_refused():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_BZIP2) as file:
        file.writestr("a.npy", b"abc")
    assert "method 12" in reason(out.getvalue())


def test_an_entry_inside_another_is_refused():
    inner = archive(Entry(name=b"b", content=b"y" * 20))[: 30 + 1 + 20]
    outer = Entry(name=b"a", content=inner)
    data = archive(outer, Entry(name=b"b", content=b"y" * 20, changes={"start": 31}))
    assert "overlap" in reason(data)


def test_two_entries_of_one_name_are_refused():
    assert "same name" in reason(archive(Entry(), Entry()))


@pytest.mark.parametrize(
    "change",
    [
        {"name": b"b.npy"},
        {"method": DEFLATED},
        {"length": 6, "compressed": 6},
        {"compressed": 3, "length": 3},
    ],
)
def test_a_local_header_that_disagrees_is_refused(change):
    assert "disagree" in reason(archive(Entry(changes=change)))


@pytest.mark.parametrize("change", [{"start": 10**9}, {"start": 38}, {"start": 3}])
def test_entries_outside_the_data_are_refused(change):
    reason(archive(Entry(changes=change)))


def test_data_reaching_into_the_directory_is_refused():
    data = archive(Entry(flags=8, changes={"compressed": 8, "length": 8}))
    assert "beyond" in reason(data)


def test_a_ratio_that_deflate_cannot_reach_is_refused():
    assert "impossible" in reason(archive(Entry(content=bytes(100), method=DEFLATED, length=103_201)))
    assert "impossible" in reason(archive(Entry(content=bytes(100), length=101)))


def test_the_best_ratio_of_deflate_is_accepted():
    content = zlib.compress(bytes(2**22), 9, wbits=-15)
    (entry,) = inspect_zip(archive(Entry(content=content, method=DEFLATED, length=2**22)))
    assert entry.length / entry.compressed_length > 1000


def test_a_decompression_bomb_is_refused_by_the_size_of_one_entry():
    bomb = Entry(content=bytes(1_100_000), method=DEFLATED, length=MAX_ENTRY_BYTES + 1)
    assert "inflates to" in reason(archive(bomb))


def test_a_decompression_bomb_is_refused_by_the_size_of_all_entries_together():
    bombs = [Entry(bytes((97 + i,)), bytes(1_100_000), DEFLATED, length=MAX_ENTRY_BYTES) for i in range(3)]
    assert "in all" in reason(archive(*bombs))


def test_too_many_entries_are_refused():
    assert "entries" in reason(archive(Entry(), count=60_000))


@pytest.mark.parametrize("count", [0, 2])
def test_a_wrong_count_of_entries_is_refused(count):
    assert "directory" in reason(archive(Entry(), count=count))


def test_several_disks_are_refused():
    assert "disks" in reason(archive(Entry(), disk=1))
    assert "disks" in reason(archive(Entry(changes={"disk": 1})))


def test_bytes_before_the_archive_are_refused():
    assert "directly before" in reason(b"junk" + archive(Entry()))


def test_bytes_after_the_archive_are_refused():
    assert "comment" in reason(archive(Entry()) + b"junk")


def test_a_truncated_archive_is_refused_wherever_it_is_cut():
    data = archive(Entry(), Entry(name=b"b"))
    for length in range(len(data)):
        reason(data[:length])


def test_a_name_that_is_not_utf8_is_refused():
    assert "UTF-8" in reason(archive(Entry(name=b"\xff\xfe", flags=0x800)))

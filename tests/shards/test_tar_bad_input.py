"""Files that are damaged, hostile or not tars raise a TarError with the shard, the member and the offset."""

import bz2
import gzip
import io
import lzma
import tarfile

import pytest
from tests.support.hostile import GNU_MAGIC, base256, looping_tar, tar_header

from penstock.errors import TarError
from penstock.shards.codecs import zstd
from penstock.shards.open_shard import PlainShard, open_shard
from penstock.shards.tar import MAX_EXTENSION_BYTES, walk_tar
from penstock.shards.tar_header import HEADER_BATCH, TAR_BLOCK
from penstock.storage.local import copying_reader
from penstock.testing import corrupt

END = bytes(2 * TAR_BLOCK)


def member(name, data=b"data", **header_fields):
    return tar_header(name, len(data), **header_fields) + data + bytes(-len(data) % TAR_BLOCK)


def with_checksum(header):
    blank = bytes(header[:148]) + b" " * 8 + bytes(header[156:])
    return corrupt.overwrite(blank, 148, b"%06o\0 " % sum(blank))


def pax(records, next_member=b""):
    """Return a PAX header with these records, followed by the member it belongs to."""
    header = tar_header("PaxHeader", len(records), typeflag=b"x")
    return header + records + bytes(-len(records) % TAR_BLOCK) + next_member


def record(keyword, value):
    """Return one PAX record; its length includes its own digits."""
    body = b" " + keyword + b"=" + value + b"\n"
    length = len(body) + 1
    while len(str(length)) + len(body) != length:
        length += 1
    return str(length).encode() + body


@pytest.fixture
def error_of(tmp_path):
    """A function that reads bytes as a tar and returns the TarError, which must name the shard."""

    def read(data, name="a.tar"):
        path = tmp_path / name
        path.write_bytes(data)
        with open_shard(path) as source, pytest.raises(TarError) as caught:
            walk_tar(source, str(path))
        assert caught.value.shard == str(path)
        assert caught.value.stage in ("scan", "decompress")
        assert caught.value.advice
        return caught.value

    return read


@pytest.fixture
def members_of(tmp_path):
    """A function that reads bytes as a tar and returns its members."""

    def read(data, name="a.tar"):
        path = tmp_path / name
        path.write_bytes(data)
        with open_shard(path) as source:
            return walk_tar(source, str(path))

    return read


# -- truncated tars ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [513, 700, 1023])
def test_a_tar_cut_in_the_data_of_its_last_member_is_an_error_with_that_member(error_of, kept):
    error = error_of(member("first.jpg") + corrupt.truncate(member("last.jpg", bytes(512)), kept))
    assert "cut short" in error.reason
    assert (error.member, error.offset) == ("last.jpg", 1024 + 1024)


def test_a_tar_cut_in_data_only_is_an_error(error_of):
    assert "cut short" in error_of(member("a.jpg", bytes(100_000))[:600]).reason


@pytest.mark.parametrize("kept", [1, 100, 511])
def test_a_tar_cut_in_a_header_is_reported_as_such(error_of, kept):
    error = error_of(member("first.jpg") + member("last.jpg")[:kept])
    assert "inside a header" in error.reason
    assert error.offset == 1024


@pytest.mark.parametrize("before", [HEADER_BATCH, HEADER_BATCH + 1, HEADER_BATCH + 2])
@pytest.mark.parametrize("kept", [1, 511])
def test_a_tar_of_tiny_members_cut_in_a_header_is_reported_as_such(error_of, before, kept):
    """After a batch of tiny members the cut header may be the second one of a read."""
    error = error_of(member("tiny.cls") * before + member("last.jpg")[:kept])
    assert "inside a header" in error.reason
    assert error.offset == before * 1024


def test_a_tar_cut_in_a_pax_payload_is_reported_as_such(error_of):
    data = member("first.jpg") + pax(record(b"path", b"n" * 600))
    error = error_of(data[: 1024 + 512 + 100])
    assert "inside an extended header" in error.reason
    assert error.offset == 1024


@pytest.mark.parametrize("end", [b"", END], ids=["end of file", "end mark"])
@pytest.mark.parametrize(
    "extension",
    [
        pax(record(b"path", b"long.jpg")),
        pax(record(b"mtime", b"1.5")),
        tar_header("././@LongLink", 9, typeflag=b"L") + b"long.jpg".ljust(TAR_BLOCK, b"\0"),
    ],
    ids=["pax path", "pax mtime", "gnu long name"],
)
def test_an_extended_header_without_its_member_is_an_error(error_of, extension, end):
    error = error_of(member("first.jpg") + extension + end)
    assert "extended header" in error.reason
    assert error.offset == 1024 + 1024


# -- bad headers ---------------------------------------------------------------------------------------------------


def test_a_bad_checksum_in_the_first_header_is_reported_as_not_a_tar(error_of):
    error = error_of(corrupt.flip_bit(member("a.jpg"), 100) + END)
    assert error.reason.startswith("is not a tar: it starts with b'a.jpg")
    assert error.offset == 0


@pytest.mark.parametrize("before", [1, HEADER_BATCH - 1, HEADER_BATCH, HEADER_BATCH + 3])
def test_a_bad_checksum_in_a_later_header_is_an_error_with_member_and_offset(error_of, before):
    start = b"".join(member(f"{number}.jpg") for number in range(before))
    error = error_of(start + corrupt.flip_bit(member("bad.jpg"), 136) + member("good.jpg") + END)
    assert error.reason == "header checksum does not match"
    assert (error.member, error.offset) == ("bad.jpg", before * 1024)
    assert "copy it again" in error.advice


@pytest.mark.parametrize(
    "field", [b"\0" * 8, b" " * 8, b"9999999\0", b"-000001\0", b"+012345\0", b"0o1234\0\0", b"xyz\0\0\0\0\0"]
)
def test_a_checksum_field_that_is_not_a_number_is_refused(error_of, field):
    error = error_of(member("first.jpg") + member("bad.jpg", checksum=field) + END)
    assert error.offset == 1024


@pytest.mark.parametrize(
    "raw_size",
    [b"+0000000001\0", b"-0000000001\0", b"1_0\0", b"0o7\0", b"0x7\0", b"00000000008\0", b"7 7\0"],
)
def test_a_size_that_is_not_plain_octal_is_refused(error_of, raw_size):
    error = error_of(member("first.jpg") + tar_header("bad.jpg", raw_size=raw_size) + bytes(TAR_BLOCK) + END)
    assert "is not an octal number" in error.reason
    assert (error.member, error.offset) == ("bad.jpg", 1024)


@pytest.mark.parametrize("size", [-1, -512, -(1 << 62)])
def test_a_negative_size_is_refused(error_of, size):
    error = error_of(member("first.jpg") + tar_header("bad.jpg", raw_size=base256(size)) + END)
    assert "negative size" in error.reason
    assert (error.member, error.offset) == ("bad.jpg", 1024)


def test_a_tar_on_which_tarfile_loops_forever_is_refused(error_of):
    assert "negative size" in error_of(looping_tar()).reason


@pytest.mark.parametrize("size", [1 << 40, (1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, 1 << 64, (1 << 94) - 1])
def test_a_huge_base256_size_is_refused_however_huge(error_of, size):
    error = error_of(member("first.jpg") + tar_header("bad.jpg", raw_size=base256(size)) + END)
    assert error.member == "bad.jpg"
    assert str(1024 + TAR_BLOCK + size) in error.reason or str(size) in error.reason


@pytest.mark.parametrize("size", [1 << 40, (1 << 63) - 1, 1 << 63, 1 << 64, 10**20 - 1])
def test_a_huge_pax_size_is_refused_however_huge(error_of, size):
    data = member("first.jpg") + pax(record(b"size", b"%d" % size), tar_header("bad.jpg"))
    error = error_of(data + END)
    assert error.member == "bad.jpg"
    assert str(size) in error.reason or "cut short" in error.reason


@pytest.mark.parametrize("ending", [".tar.gz", ".tar.zst"])
def test_a_huge_size_in_a_compressed_shard_is_refused(error_of, ending):
    data = member("first.jpg") + tar_header("bad.jpg", raw_size=base256(1 << 93)) + END
    packed = gzip.compress(data) if ending == ".tar.gz" else zstd.compress(data)
    assert error_of(packed, "a" + ending).member == "bad.jpg"


def test_an_octal_size_beyond_the_file_is_reported_as_a_cut_tar(error_of):
    error = error_of(member("first.jpg") + tar_header("bad.jpg", 8**11 - 1) + END)
    assert "cut short" in error.reason
    assert error.member == "bad.jpg"


@pytest.mark.parametrize(
    ("typeflag", "reason"),
    [(b"S", "is a GNU sparse file"), (b"M", "is the continuation of a file in another volume")],
)
def test_a_member_whose_data_cannot_be_read_is_listed_with_the_reason(members_of, typeflag, reason):
    found = members_of(
        member("first.jpg") + member("odd.bin", bytes(700), typeflag=typeflag) + member("last.jpg") + END
    )
    assert found.names == ["first.jpg", "odd.bin", "last.jpg"]
    assert list(found.lengths) == [4, 0, 4]
    assert found.unreadable == {1024 + 512: reason}


def test_a_sparse_file_with_pax_headers_has_its_own_name(members_of):
    records = record(b"GNU.sparse.major", b"1") + record(b"GNU.sparse.name", b"odd.bin")
    data = member("first.jpg") + pax(records, member("GNUSparseFile.0/odd.bin")) + member("last.jpg") + END
    found = members_of(data)
    assert found.names == ["first.jpg", "odd.bin", "last.jpg"]
    assert found.unreadable == {1024 + 1024 + 512: "is a GNU sparse file"}


def test_a_tar_cut_in_the_headers_of_a_sparse_file_is_an_error(error_of):
    header = bytearray(tar_header("odd.bin", 512, typeflag=b"S", magic=GNU_MAGIC))
    header[482] = 1
    with_further_headers = with_checksum(header)
    error = error_of(member("first.jpg") + with_further_headers + (bytes(504) + b"\1" + bytes(7)) * 3)
    assert "inside the headers of a sparse file" in error.reason
    assert (error.member, error.offset) == ("odd.bin", 1024)


# -- extended headers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "records",
    [
        b"nonsense",
        b"12 path=abc",
        b"99 path=abc\n",
        b"5 path=abc\n",
        b"0 path=abc\n",
        b"-1 path=abc\n",
        b"+12 path=abc\n",
        b" path=abc\n",
        b"12 pathabcd\n",
        b"12  path=abc",
        b"999999999999 path=abc\n",
        b"1_2 path=abc\n",
        b"3 \n",
        record(b"path", b"good.jpg") + b"junk",
    ],
    ids=repr,
)
def test_a_malformed_pax_record_is_refused(error_of, records):
    error = error_of(member("first.jpg") + pax(records, member("next.jpg")) + END)
    assert error.reason == "malformed PAX record"
    assert error.offset == 1024


@pytest.mark.parametrize("value", [b"-1", b"+1", b"1_0", b" 1", b"0x10", b"1.5", b"", b"9" * 21, b"\xb2"])
def test_a_pax_size_that_is_not_a_number_is_refused(error_of, value):
    error = error_of(member("first.jpg") + pax(record(b"size", value), member("next.jpg")) + END)
    assert "PAX size" in error.reason
    assert error.offset == 1024


class RecordedReads(PlainShard):
    """A shard that records the length of each read."""

    def __init__(self, path):
        super().__init__(path)
        self.lengths = []

    def raw_reader(self):
        return copying_reader(self.read_at)

    def read_at(self, offset, length):
        self.lengths.append(length)
        return super().read_at(offset, length)


@pytest.mark.parametrize("typeflag", [b"x", b"g", b"L", b"K"])
@pytest.mark.parametrize("size", [MAX_EXTENSION_BYTES + 1, 1 << 30, 7 << 30])
def test_an_extended_header_of_gigabytes_is_refused_before_it_is_read(tmp_path, typeflag, size):
    path = tmp_path / "a.tar"
    with path.open("wb") as file:
        file.write(tar_header("huge", size, typeflag=typeflag))
        file.truncate(TAR_BLOCK + size + 2 * TAR_BLOCK)
    with RecordedReads(path) as source, pytest.raises(TarError, match=f"claims {size} bytes") as caught:
        walk_tar(source, str(path))
    assert caught.value.offset == 0
    assert max(source.lengths) == TAR_BLOCK


def test_the_longest_name_that_is_allowed_is_read(members_of):
    name = b"n" * (MAX_EXTENSION_BYTES - 20)
    records = record(b"path", name)
    assert members_of(pax(records, member("short")) + END).names == [name.decode()]


def test_the_last_of_several_extended_headers_counts(members_of):
    data = pax(record(b"path", b"one.jpg"), pax(record(b"path", b"two.jpg"), member("short.jpg"))) + END
    assert members_of(data).names == ["two.jpg"]


# -- members that are not files ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typeflag", "description"),
    [
        (b"3", "device"),
        (b"4", "device"),
        (b"6", "fifo"),
        (b"V", "member of unknown type 'V'"),
    ],
)
def test_links_and_devices_are_listed_and_not_followed(members_of, typeflag, description):
    other = tar_header("other", 0, typeflag=typeflag)
    members = members_of(member("a.jpg") + other + member("b.jpg") + END)
    assert members.names == ["a.jpg", "b.jpg"]
    assert members.other_members == [("other", 1024, description)]


def test_a_hard_link_has_no_data_despite_its_size(members_of):
    hard_link = tar_header("link.jpg", 4, typeflag=b"1", link="a.jpg")
    members = members_of(member("a.jpg") + hard_link + member("b.jpg") + END)
    assert list(zip(members.names, members.offsets, strict=True)) == [
        ("a.jpg", 512),
        ("link.jpg", 512),
        ("b.jpg", 2048),
    ]


def test_the_member_after_one_of_unknown_type_is_found(members_of):
    members = members_of(member("other", bytes(700), typeflag=b"V") + member("b.jpg") + END)
    assert (members.names, list(members.offsets)) == (["b.jpg"], [512 + 1024 + 512])


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "C:\\windows", "a/../b.jpg", "..", "~root", "-rf"])
def test_a_member_name_is_only_used_as_a_key(members_of, tmp_path, name):
    members = members_of(member(name) + END)
    assert members.names == [name]
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


# -- files that are not tars ---------------------------------------------------------------------------------------


def test_an_empty_file_is_reported_as_empty(error_of):
    assert "is empty (0 bytes)" in error_of(b"").reason


@pytest.mark.parametrize("ending", [".tar.gz", ".tar.zst"])
def test_a_compressed_empty_file_is_reported_as_empty(error_of, ending):
    packed = gzip.compress(b"") if ending == ".tar.gz" else zstd.compress(b"")
    assert "is empty (0 bytes)" in error_of(packed, "a" + ending).reason


@pytest.mark.parametrize("length", [54, 511, 512, 5000])
@pytest.mark.parametrize("start", [b"<!DOCTYPE html>", b"<html>", b"<?xml version='1.0'?>", b"\n  <HTML>"])
def test_a_web_page_named_tar_is_reported_as_a_web_page(error_of, start, length):
    error = error_of(start.ljust(length, b"x"))
    assert "is not a tar" in error.reason
    assert "a web page" in error.reason
    assert error.offset == 0


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize(
    ("pack", "format_name"), [(gzip.compress, "gzip (name it .tar.gz)"), (zstd.compress, "zstd (name it .tar.zst)")]
)
def test_compressed_data_named_tar_is_reported_with_its_format(error_of, pack, format_name, size):
    noise = bytes(number * number % 251 for number in range(size))
    error = error_of(pack(noise))
    assert "is not a tar" in error.reason
    assert format_name in error.reason


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
OTHER_FORMATS = {
    "bzip2": bz2.compress(bytes(5000)),
    "xz": lzma.compress(bytes(5000)),
    "zip": b"PK\3\4" + bytes(600),
    "a git-lfs pointer": LFS,
    "a web page": b"\xef\xbb\xbf\n<!DOCTYPE html>" + bytes(600),
}


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tar.zst"])
@pytest.mark.parametrize("name", OTHER_FORMATS)
def test_a_file_of_another_format_is_reported_with_that_format(error_of, name, ending):
    error = error_of(OTHER_FORMATS[name], "a" + ending)
    assert f", which is {name}" in error.reason
    assert error.offset == 0


@pytest.mark.parametrize(
    ("ending", "data", "name"),
    [
        (".tar.gz", member("a.jpg") + END, "a tar (name it .tar)"),
        (".tar.zst", member("a.jpg") + END, "a tar (name it .tar)"),
        (".tar.gz", zstd.compress(member("a.jpg") + END), "zstd (name it .tar.zst)"),
        (".tar.zst", gzip.compress(member("a.jpg") + END, mtime=0), "gzip (name it .tar.gz)"),
    ],
    ids=["tar named .tar.gz", "tar named .tar.zst", "zst named .tar.gz", "gz named .tar.zst"],
)
def test_a_shard_with_the_wrong_ending_is_reported_with_the_right_one(error_of, ending, data, name):
    error = error_of(data, "a" + ending)
    assert error.reason.endswith(f", which is {name}")
    assert error.reason.startswith("is not compressed as its name says: it starts with b'")


@pytest.mark.parametrize("data", [b"x", b"x" * 100, b"x" * 5000])
def test_any_other_file_is_reported_with_its_first_bytes(error_of, data):
    error = error_of(data)
    assert f"is not a tar: it starts with {data[:16]!r}" in error.reason
    assert error.offset == 0


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"garbage", "b'garbage'"),
        (b"x" * 5000, "b'xxxxxxxxxxxxxxxx'"),
        (bytes(700) + b"text", "b'text'"),
        (b"\x1f\x8b" + bytes(510), "gzip"),
        (member("a.jpg")[:300], "b'a.jpg"),
        (corrupt.flip_bit(member("a.jpg"), 100), "b'a.jpg"),
    ],
    ids=["a few bytes", "several blocks", "behind padding", "gzip", "a cut header", "a damaged header"],
)
@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tar.zst"])
def test_data_behind_the_end_mark_that_is_no_tar_is_an_error_with_its_offset(error_of, data, what, ending):
    content = member("first.jpg") + END + data
    pack = {".tar": bytes, ".tar.gz": gzip.compress, ".tar.zst": zstd.compress}[ending]
    error = error_of(pack(content), "a" + ending)
    assert "has data behind its end-of-archive mark that is not another tar" in error.reason
    assert what in error.reason
    assert error.offset == len(member("first.jpg") + END) + len(data) - len(data.lstrip(b"\0"))


def test_padding_after_the_end_mark_is_not_listed(members_of):
    assert members_of(member("a.jpg") + END + bytes(8192)).other_members == []


def test_a_shard_without_regular_files_is_read(members_of):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, kind in (("folder", tarfile.DIRTYPE), ("link", tarfile.SYMTYPE)):
            info = tarfile.TarInfo(name)
            info.type = kind
            tar.addfile(info)
    members = members_of(buffer.getvalue())
    assert members.names == ["link"]
    assert members.other_members == [("folder/", 0, "ignored: directory")]

"""`walk_tar` agrees with the standard library's tarfile on every kind of tar that both can read."""

import gzip
import io
import itertools
import os
import shutil
import subprocess
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.hostile import GNU_MAGIC, base256, tar_header

from penstock.shards.codecs import zstd
from penstock.shards.open_shard import PlainShard, open_shard
from penstock.shards.tar import walk_tar
from penstock.shards.tar_header import HEADER_BATCH, TAR_BLOCK
from penstock.storage.local import copying_reader

USTAR, GNU, PAX = tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT
FORMATS = pytest.mark.parametrize("tar_format", [USTAR, GNU, PAX], ids=["ustar", "gnu", "pax"])
END = bytes(2 * TAR_BLOCK)


def write(path, members, tar_format=GNU):
    """Write a plain tar with tarfile and return its path; each member is (name, data or size)."""
    with tarfile.open(path, "w", format=tar_format, encoding="utf-8") as tar:
        for name, data in members:
            data = bytes(data) if isinstance(data, int) else data
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def gnu_tar():
    program = shutil.which("tar")
    if program is None or b"GNU tar" not in subprocess.run([program, "--version"], capture_output=True).stdout:
        pytest.skip("GNU tar is not installed here")
    return program


def padded(data):
    return data + bytes(-len(data) % TAR_BLOCK)


def by_tarfile(path):
    """Return (name, offset, size) of the files in a tar, as tarfile reads them."""
    with tarfile.open(path, encoding="utf-8") as tar:
        return [(member.name, member.offset_data, member.size) for member in tar if member.isreg()]


def walk(path):
    with open_shard(path) as source:
        return walk_tar(source, str(path))


def by_penstock(path):
    """Return (name, offset, size) of the files in a tar, as `walk_tar` reads them."""
    members = walk(path)
    return list(zip(members.names, members.offsets, members.lengths, strict=True))


def assert_both_agree(path, count):
    members = by_penstock(path)
    assert members == by_tarfile(path)
    assert len(members) == count


# -- formats, names, sizes -----------------------------------------------------------------------------------------


@FORMATS
def test_sizes_around_a_block_have_the_same_offsets_as_in_tarfile(tmp_path, tar_format):
    sizes = [0, 1, 511, 512, 513, 1023, 1024, 1025, 100_000, 0]
    path = write(tmp_path / "a.tar", [(f"{number:04d}.bin", size) for number, size in enumerate(sizes)], tar_format)
    assert_both_agree(path, len(sizes))


@pytest.mark.parametrize("tar_format", [GNU, PAX], ids=["gnu", "pax"])
@pytest.mark.parametrize("length", [99, 100, 101, 255, 256, 300, 5000])
def test_long_names_are_complete(tmp_path, tar_format, length):
    names = ["short.jpg", "n" * (length - 4) + ".jpg", "d/" * ((length - 5) // 2) + "x.jpg", "last.jpg"]
    path = write(tmp_path / "a.tar", [(name, 700) for name in names], tar_format)
    assert_both_agree(path, 4)
    assert walk(path).names == names


@pytest.mark.parametrize("folder", [100, 120, 155])
def test_a_name_split_into_prefix_and_name_is_joined_again(tmp_path, folder):
    names = ["f" * folder + "/" + "n" * 96 + ".jpg", "plain.jpg", "f" * folder + "/x.jpg"]
    path = write(tmp_path / "a.tar", [(name, 10) for name in names], USTAR)
    assert_both_agree(path, 3)
    assert walk(path).names == names


def test_the_prefix_is_used_for_every_version_of_the_ustar_format(tmp_path):
    header = tar_header("x.jpg", 0, prefix="folder", magic=b"ustar\0\0\0")
    (tmp_path / "a.tar").write_bytes(header + END)
    assert_both_agree(tmp_path / "a.tar", 1)
    assert walk(tmp_path / "a.tar").names == ["folder/x.jpg"]


def test_times_that_gnu_tar_stores_in_the_prefix_field_are_not_a_prefix(tmp_path):
    times = "14372157612\0" + "14372157612"
    (tmp_path / "a.tar").write_bytes(tar_header("x.jpg", 0, prefix=times, magic=GNU_MAGIC) + END)
    assert walk(tmp_path / "a.tar").names == ["x.jpg"]


@FORMATS
def test_names_in_other_alphabets_are_decoded(tmp_path, tar_format):
    names = ["bild-ä.jpg", "图片/0001.jpg", "картина.npz", "plain.jpg", "naïve.json"]
    path = write(tmp_path / "a.tar", [(name, 10) for name in names], tar_format)
    assert_both_agree(path, 5)
    assert walk(path).names == names


def test_bytes_that_are_not_utf8_become_visible_escapes(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w", format=GNU, encoding="latin-1") as tar:
        tar.addfile(tarfile.TarInfo("fa\u00e7ade.jpg"))
        tar.addfile(tarfile.TarInfo("fa\u00e7ade" + "n" * 200 + ".jpg"))
    assert walk(tmp_path / "a.tar").names == ["fa\\xe7ade.jpg", "fa\\xe7ade" + "n" * 200 + ".jpg"]


def test_a_name_ends_at_its_first_zero_byte(tmp_path):
    header = bytearray(tar_header("abc\0def.jpg"))
    (tmp_path / "a.tar").write_bytes(bytes(header) + tar_header("n" * 100) + END)
    assert_both_agree(tmp_path / "a.tar", 2)
    assert walk(tmp_path / "a.tar").names == ["abc", "n" * 100]


def test_names_with_line_breaks_stay_separate(tmp_path):
    path = write(tmp_path / "a.tar", [("a\nb.jpg", 1), ("c.jpg", 1)])
    assert walk(path).names == ["a\nb.jpg", "c.jpg"]


@pytest.mark.parametrize(
    "raw_size",
    [
        b"00000001274\0",
        b"00000001274 ",
        b"000000001274",
        b"       1274 ",
        b"1274 \0\0\0\0\0\0\0",
        b"1274\0\0\0\0\0\0\0\0",
        b"       1274\0",
        base256(700),
    ],
    ids=repr,
)
def test_every_notation_of_a_size_is_parsed(tmp_path, raw_size):
    first = tar_header("a.jpg", raw_size=raw_size) + padded(bytes(700))
    (tmp_path / "a.tar").write_bytes(first + tar_header("b.jpg", 3) + padded(b"abc") + END)
    assert_both_agree(tmp_path / "a.tar", 2)
    assert by_penstock(tmp_path / "a.tar") == [("a.jpg", 512, 700), ("b.jpg", 2048, 3)]


def test_a_blank_size_is_zero(tmp_path):
    (tmp_path / "a.tar").write_bytes(tar_header("a.jpg", raw_size=bytes(12)) + tar_header("b.jpg") + END)
    assert_both_agree(tmp_path / "a.tar", 2)


@pytest.mark.parametrize("tar_format", [GNU, PAX], ids=["gnu", "pax"])
def test_the_member_after_one_of_more_than_8_gib_is_found(tmp_path, tar_format):
    path = tmp_path / "a.tar"
    with path.open("wb") as file:
        for name, size in (("huge.bin", (9 << 30) + 5), ("small.bin", 3)):
            info = tarfile.TarInfo(name)
            info.size = size
            file.write(info.tobuf(tar_format))
            file.seek(size + -size % TAR_BLOCK, io.SEEK_CUR)
        file.write(END)
    assert_both_agree(path, 2)


def test_headers_from_before_ustar_are_read(tmp_path):
    old = {"typeflag": b"\0", "magic": bytes(8)}
    file = tar_header("images/a.jpg", 5, **old) + padded(b"12345")
    (tmp_path / "a.tar").write_bytes(file + tar_header("images/empty.txt", 0, **old) + END)
    assert_both_agree(tmp_path / "a.tar", 2)


@FORMATS
def test_directories_are_ignored_and_listed(tmp_path, tar_format):
    with tarfile.open(tmp_path / "a.tar", "w", format=tar_format) as tar:
        for name in ("images", "images/deep"):
            folder = tarfile.TarInfo(name)
            folder.type = tarfile.DIRTYPE
            tar.addfile(folder)
        tar.addfile(tarfile.TarInfo("images/a.jpg"))
    assert_both_agree(tmp_path / "a.tar", 1)
    folders = [("images/", 0, "ignored: directory"), ("images/deep/", 512, "ignored: directory")]
    assert walk(tmp_path / "a.tar").other_members == folders


def test_a_global_pax_header_does_not_become_a_member(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w", format=PAX, pax_headers={"comment": "c" * 40}) as tar:
        tar.addfile(tarfile.TarInfo("a.jpg"))
    assert_both_agree(tmp_path / "a.tar", 1)


def test_pax_headers_without_name_or_size_change_neither(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w", format=PAX) as tar:
        for number in range(5):
            info = tarfile.TarInfo(f"{number}.jpg")
            info.mtime, info.size = 0.25, 600
            tar.addfile(info, io.BytesIO(bytes(600)))
    assert_both_agree(tmp_path / "a.tar", 5)


@pytest.mark.parametrize("tar_format", [GNU, PAX], ids=["gnu", "pax"])
def test_a_long_link_target_does_not_name_the_next_member(tmp_path, tar_format):
    with tarfile.open(tmp_path / "a.tar", "w", format=tar_format) as tar:
        tar.addfile(link("link.jpg", "t" * 300, tarfile.SYMTYPE))
        tar.addfile(tarfile.TarInfo("a.jpg"))
    found = walk(tmp_path / "a.tar")
    assert found.names == ["link.jpg", "a.jpg"]
    assert found.unreadable == {found.offsets[0]: f"is a symbolic link to {'t' * 300!r}, which is not followed"}


def test_a_contiguous_file_is_a_file(tmp_path):
    (tmp_path / "a.tar").write_bytes(tar_header("a.jpg", 2, typeflag=b"7") + padded(b"ab") + END)
    assert_both_agree(tmp_path / "a.tar", 1)


# -- checksums -----------------------------------------------------------------------------------------------------


def test_a_checksum_over_signed_bytes_is_accepted(tmp_path):
    unsigned = tar_header("bild-ä.jpg", 2)
    total = sum(byte - 256 if byte > 127 else byte for byte in unsigned[:148] + b" " * 8 + unsigned[156:])
    header = tar_header("bild-ä.jpg", 2, checksum=b"%06o\0 " % total)
    assert header != unsigned
    (tmp_path / "a.tar").write_bytes(tar_header("first.jpg") + header + padded(b"ab") + END)
    assert_both_agree(tmp_path / "a.tar", 2)


@pytest.mark.parametrize("notation", [b"%06o\0 ", b"%06o \0", b"%07o\0", b"%6o\0 ", b"%o\0\0\0", b"%08o"])
def test_every_notation_of_a_checksum_is_accepted(tmp_path, notation):
    header = tar_header("a.jpg", 2)
    total = sum(header[:148] + b" " * 8 + header[156:])
    field = (notation % total).ljust(8, b"\0")
    (tmp_path / "a.tar").write_bytes(tar_header("a.jpg", 2, checksum=field) + padded(b"ab") + END)
    assert_both_agree(tmp_path / "a.tar", 1)


# -- many members, in batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "count", [1, 2, HEADER_BATCH - 1, HEADER_BATCH, HEADER_BATCH + 1, 2 * HEADER_BATCH, 2 * HEADER_BATCH + 1, 3000]
)
def test_any_number_of_members_is_read_across_the_batches(tmp_path, count):
    path = write(tmp_path / "a.tar", [(f"{number:06d}.txt", number % 700) for number in range(count)])
    assert_both_agree(path, count)


@pytest.mark.parametrize("tar_format", [GNU, PAX], ids=["gnu", "pax"])
def test_extended_headers_within_a_batch_do_not_affect_other_members(tmp_path, tar_format):
    long = {0, 5, 6, HEADER_BATCH - 1, HEADER_BATCH, HEADER_BATCH + 1, 2 * HEADER_BATCH, 1299}
    names = [f"{number:06d}" + ("x" * 200 if number in long else "") + ".txt" for number in range(1300)]
    path = write(tmp_path / "a.tar", [(name, 1) for name in names], tar_format)
    assert_both_agree(path, 1300)
    assert walk(path).names == names


@pytest.mark.parametrize("sizes", [(80, 9000), (9000, 80), (1, 512), (80, 0), (80, 513), (512, 80, 0, 513, 9000)])
def test_members_among_tiny_ones_have_the_same_offsets_as_in_tarfile(tmp_path, sizes):
    """After a batch of tiny members, two headers are read at once, whether or not the next members are tiny."""
    all_sizes = [80] * HEADER_BATCH + list(itertools.islice(itertools.cycle(sizes), 2 * HEADER_BATCH + 1))
    path = write(tmp_path / "a.tar", [(f"{number:06d}.txt", size) for number, size in enumerate(all_sizes)])
    assert_both_agree(path, len(all_sizes))


@pytest.mark.parametrize("count", [HEADER_BATCH, HEADER_BATCH + 1, HEADER_BATCH + 2])
def test_a_tar_of_tiny_members_without_end_blocks_is_read_to_its_end(tmp_path, count):
    path = write(tmp_path / "a.tar", [(f"{number}.txt", 1) for number in range(count)])
    path.write_bytes(path.read_bytes()[: count * 2 * TAR_BLOCK])
    assert len(walk(path)) == count


@pytest.mark.parametrize("count", [HEADER_BATCH - 1, HEADER_BATCH, HEADER_BATCH + 1])
def test_a_tar_without_end_blocks_may_end_with_its_batch(tmp_path, count):
    path = write(tmp_path / "a.tar", [(f"{number}.txt", 0) for number in range(count)])
    path.write_bytes(path.read_bytes()[: count * TAR_BLOCK])
    assert len(walk(path)) == count


# -- hard links ----------------------------------------------------------------------------------------------------


def link(name, target, kind=tarfile.LNKTYPE):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@FORMATS
@pytest.mark.parametrize("folder", ["", "folder/" * 12 + "x/", "folder/" * 40])
def test_a_hard_link_has_the_data_of_the_member_that_it_names(tmp_path, tar_format, folder):
    if tar_format == USTAR and len(folder) > 99:
        pytest.skip("ustar stores no link target of more than 100 bytes")
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tar_format) as tar:
        for name, data in (("0.txt", b"zero"), ("1.txt", b"one")):
            info = tarfile.TarInfo(folder + name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        tar.addfile(link(folder + "2.txt", folder + "0.txt"))
        tar.addfile(link(folder + "3.txt", folder + "2.txt"))
    data = path.read_bytes()
    contents = {name.removeprefix(folder): data[start : start + size] for name, start, size in by_penstock(path)}
    assert contents == {"0.txt": b"zero", "1.txt": b"one", "2.txt": b"zero", "3.txt": b"zero"}
    assert walk(path).unreadable == {}


def test_hard_links_lie_beside_their_targets(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("0.txt", "1.txt"):
            tar.addfile(tarfile.TarInfo(name))
        tar.addfile(link("2.txt", "0.txt"))
    assert walk(tmp_path / "a.tar").names == ["0.txt", "2.txt", "1.txt"]


def test_a_hard_link_names_the_last_member_before_it_with_that_name(tmp_path):
    members = b"".join(tar_header("a.txt", 1) + padded(data) for data in (b"1", b"2"))
    hard_link = tar_header("b.txt", typeflag=b"1", link="a.txt")
    (tmp_path / "a.tar").write_bytes(members + hard_link + tar_header("a.txt", 1) + padded(b"3") + END)
    found = walk(tmp_path / "a.tar")
    assert found.offsets[found.names.index("b.txt")] == 3 * TAR_BLOCK


@pytest.mark.parametrize("target", ["later.txt", "folder", "missing.txt"])
def test_a_hard_link_to_no_earlier_file_is_unreadable_and_the_others_are_read(tmp_path, target):
    folder = tar_header("folder", typeflag=b"5")
    hard_link = tar_header("link.txt", typeflag=b"1", link=target)
    (tmp_path / "a.tar").write_bytes(folder + hard_link + tar_header("later.txt", 1) + padded(b"x") + END)
    found = walk(tmp_path / "a.tar")
    assert by_penstock(tmp_path / "a.tar") == [("link.txt", 1024, 0), ("later.txt", 1536, 1)]
    assert found.unreadable == {1024: f"is a hard link to {target!r}, and no file before it has that name"}


# -- sparse files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("holes", [1, 3, 4, 25, 200])
@pytest.mark.parametrize(
    "options",
    [
        ["--format=oldgnu"],
        ["--format=gnu"],
        *(["--format=posix", f"--sparse-version={v}"] for v in ("0.0", "0.1", "1.0")),
    ],
    ids=["oldgnu", "gnu", "posix 0.0", "posix 0.1", "posix 1.0"],
)
def test_a_sparse_file_costs_its_own_member_only(tmp_path, options, holes):
    """GNU tar stores where the data lies in up to 21 entries per further header, or before the data."""
    (tmp_path / "0.txt").write_bytes(b"before")
    with open(tmp_path / "1.bin", "wb") as file:
        for number in range(holes):
            file.seek((2 * number + 1) << 16)
            file.write(b"x" * 4096)
    (tmp_path / "2.txt").write_bytes(b"behind")
    command = [gnu_tar(), "--sparse", *options, "-cf", tmp_path / "a.tar", "-C", tmp_path, "0.txt", "1.bin", "2.txt"]
    subprocess.run(command, check=True)
    with tarfile.open(tmp_path / "a.tar") as tar:
        if not tar.getmember("1.bin").issparse():
            pytest.skip("this file system stores no holes")
    found = walk(tmp_path / "a.tar")
    data = (tmp_path / "a.tar").read_bytes()
    contents = {name: data[start : start + size] for name, start, size in by_penstock(tmp_path / "a.tar")}
    assert contents == {"0.txt": b"before", "1.bin": b"", "2.txt": b"behind"}
    assert found.unreadable == {found.offsets[1]: "is a GNU sparse file"}


# -- several tars in one file --------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["cat", "tar -A"])
@FORMATS
def test_all_members_of_concatenated_tars_are_read(tmp_path, tar_format, program):
    paths = [
        write(tmp_path / f"{first}.tar", [(f"{number}.bin", number * 100) for number in numbers], tar_format)
        for first, numbers in (("a", range(3)), ("b", ()), ("c", range(3, 600)), ("d", range(600, 601)))
    ]
    together = tmp_path / "together.tar"
    if program == "cat":
        together.write_bytes(b"".join(path.read_bytes() for path in paths))
    else:
        shutil.copy(paths[0], together)
        subprocess.run([gnu_tar(), "-A", "-f", together, *paths[1:]], check=True)
    with tarfile.open(together, ignore_zeros=True) as tar:
        expected = [(member.name, member.offset_data, member.size) for member in tar]
    assert by_penstock(together) == expected
    assert len(expected) == 601


@pytest.mark.parametrize(("ending", "pack"), [(".tar.gz", gzip.compress), (".tar.zst", zstd.compress)])
def test_all_members_of_concatenated_compressed_tars_are_read(tmp_path, ending, pack):
    paths = [write(tmp_path / f"{name}.tar", [(f"{name}{number}.bin", 700) for number in range(3)]) for name in "ab"]
    together, plain = tmp_path / f"a{ending}", tmp_path / "plain.tar"
    together.write_bytes(b"".join(pack(path.read_bytes()) for path in paths))
    plain.write_bytes(b"".join(path.read_bytes() for path in paths))
    assert by_penstock(together) == by_penstock(plain)
    assert len(by_penstock(plain)) == 6


@pytest.mark.parametrize("blocks", [1, 2, 3, 19, 127, 128, 129, 300])
def test_zeros_between_two_tars_are_stepped_over(tmp_path, blocks):
    first, second = (tar_header(name, 1) + padded(b"x") for name in ("a.txt", "b.txt"))
    (tmp_path / "a.tar").write_bytes(first + bytes(blocks * TAR_BLOCK) + second)
    assert walk(tmp_path / "a.tar").names == ["a.txt", "b.txt"]


# -- the end of the archive ----------------------------------------------------------------------------------------


def test_a_tar_of_zeros_only_is_empty_and_sound(tmp_path):
    write(tmp_path / "a.tar", [])
    members = walk(tmp_path / "a.tar")
    assert (len(members), members.other_members) == (0, [])


@pytest.mark.parametrize("zeros", [0, 100, 212, 512, 1024, 10_000])
def test_missing_end_blocks_are_accepted_if_the_last_member_is_complete(tmp_path, zeros):
    """300 bytes need 212 of padding: 0 is the bare data, 212 the padded member, 512 half a block more."""
    (tmp_path / "a.tar").write_bytes(tar_header("a.jpg", 300) + b"x" * 300 + bytes(zeros))
    assert by_penstock(tmp_path / "a.tar") == [("a.jpg", 512, 300)]


# -- compressed shards ---------------------------------------------------------------------------------------------


@FORMATS
@pytest.mark.parametrize(
    ("ending", "pack"),
    [(".tar.gz", gzip.compress), (".tgz", gzip.compress), (".tar.zst", zstd.compress), (".tar.zstd", zstd.compress)],
)
def test_a_compressed_shard_reads_as_the_plain_one_does(tmp_path, tar_format, ending, pack):
    members = [(f"{number:04d}" + "x" * (number % 7 * 40) + ".bin", number * 37) for number in range(600)]
    plain = write(
        tmp_path / "a.tar",
        [(name, size) for name, size in members if tar_format != USTAR or len(name) < 100],
        tar_format,
    )
    packed = tmp_path / f"a{ending}"
    packed.write_bytes(pack(plain.read_bytes()))
    assert by_penstock(packed) == by_penstock(plain) == by_tarfile(plain)


@pytest.mark.parametrize(("ending", "pack"), [(".tar.gz", gzip.compress), (".tar.zst", zstd.compress)])
def test_a_file_of_several_compressed_pieces_is_one_stream(tmp_path, ending, pack):
    plain = write(tmp_path / "a.tar", [(f"{number}.bin", 1000) for number in range(50)])
    data = plain.read_bytes()
    bounds = [0, 1, 700, 20_000, len(data)]
    pieces = [pack(data[start:stop]) for start, stop in itertools.pairwise(bounds)]
    (tmp_path / f"a{ending}").write_bytes(b"".join(pieces))
    assert by_penstock(tmp_path / f"a{ending}") == by_tarfile(plain)


# -- only headers are read -----------------------------------------------------------------------------------------


class RecordedReads(PlainShard):
    """A shard that records which ranges were read."""

    def __init__(self, path):
        super().__init__(path)
        self.reads = []

    def raw_reader(self):
        return copying_reader(self.read_at)

    def read_at(self, offset, length):
        self.reads.append((offset, length))
        return super().read_at(offset, length)


def test_one_header_is_read_per_member_and_no_data(tmp_path):
    path = write(tmp_path / "a.tar", [(f"{number:04d}.bin", 5000 + number) for number in range(HEADER_BATCH + 100)])
    with RecordedReads(path) as source:
        members = walk_tar(source, str(path))
    headers = [(offset - TAR_BLOCK, TAR_BLOCK) for offset in members.offsets]
    end_of_data = members.offsets[-1] + members.lengths[-1]
    end = end_of_data + -end_of_data % TAR_BLOCK
    rest = path.stat().st_size - end - TAR_BLOCK
    padding = [(end + TAR_BLOCK, rest), (end + TAR_BLOCK + rest, TAR_BLOCK)]
    assert source.reads == [*headers, (end, TAR_BLOCK), *padding]


class CountedReads(PlainShard):
    """A shard that counts the reads of headers."""

    reads = 0

    def raw_reader(self):
        real_reader = super().raw_reader()

        def counting_reader(rows, offset):
            self.reads += 1
            return real_reader(rows, offset)

        return counting_reader


@pytest.mark.skipif(not hasattr(os, "preadv"), reason="the system cannot scatter a read")
def test_two_headers_are_read_at_once_among_tiny_members(tmp_path):
    """This happens only after a batch that has many tiny members."""
    path = write(
        tmp_path / "a.tar", [(f"{number:04d}.bin", (5000, 80)[number % 2]) for number in range(3 * HEADER_BATCH)]
    )
    with CountedReads(path) as source:
        walk_tar(source, str(path))
    second_and_third, end = 2 * (HEADER_BATCH // 2 + 1), 1
    assert source.reads == HEADER_BATCH + second_and_third + end


@pytest.mark.parametrize("tar_format", [GNU, PAX], ids=["gnu", "pax"])
def test_no_data_of_members_with_extended_headers_is_read(tmp_path, tar_format):
    path = write(tmp_path / "a.tar", [("n" * 150 + f"{number:04d}.bin", 5000) for number in range(20)], tar_format)
    with RecordedReads(path) as source:
        members = walk_tar(source, str(path))
    data_positions = set()
    for start, length in zip(members.offsets, members.lengths, strict=True):
        data_positions.update(range(start, start + length))
    assert len(data_positions) == 20 * 5000
    assert not any(data_positions.intersection(range(start, start + length)) for start, length in source.reads)


# -- any list of members -------------------------------------------------------------------------------------------

TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1, max_size=60
)
NAMES = st.lists(TEXT, min_size=1, max_size=6).map("/".join)
MEMBERS = st.lists(st.tuples(NAMES, st.integers(0, 1600)), max_size=12)


@pytest.fixture(scope="module")
def scratch_path(tmp_path_factory):
    return tmp_path_factory.mktemp("tar") / "a.tar"


@pytest.mark.parametrize("tar_format", [GNU, PAX], ids=["gnu", "pax"])
@settings(deadline=None, max_examples=150)
@given(members=MEMBERS)
def test_any_list_of_members_is_read_back(scratch_path, tar_format, members):
    write(scratch_path, members, tar_format)
    assert by_penstock(scratch_path) == by_tarfile(scratch_path)
    assert [(name, size) for name, _, size in by_penstock(scratch_path)] == members


SHORT = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="/"), min_size=1, max_size=70)
SPLITTABLE = st.lists(SHORT, min_size=1, max_size=3).map("/".join).filter(lambda name: len(name) <= 150)


@settings(deadline=None, max_examples=150)
@given(members=st.lists(st.tuples(SPLITTABLE, st.integers(0, 1600)), max_size=12))
def test_any_list_of_members_is_read_back_from_ustar(scratch_path, members):
    write(scratch_path, members, USTAR)
    assert by_penstock(scratch_path) == by_tarfile(scratch_path)
    assert [(name, size) for name, _, size in by_penstock(scratch_path)] == members


@pytest.mark.parametrize("tar_format", ["v7", "oldgnu", "gnu", "ustar", "posix"])
def test_every_format_of_gnu_tar_is_read(tmp_path, tar_format):
    folder = tmp_path / "src" / ("deep" * 20)
    folder.mkdir(parents=True)
    for number in range(20):
        name = f"{number:04d}" + ("_long" * 14 if tar_format != "v7" and number % 3 == 0 else "") + ".bin"
        (folder / name).write_bytes(bytes(number * 101))
    command = [gnu_tar(), f"--format={tar_format}", "-cf", str(tmp_path / "a.tar"), "-C", str(folder.parent), "."]
    subprocess.run(command, check=True)
    members = by_penstock(tmp_path / "a.tar")
    by_name = {name.removeprefix("./"): (offset, size) for name, offset, size in members}
    expected = {name.removeprefix("./"): (offset, size) for name, offset, size in by_tarfile(tmp_path / "a.tar")}
    assert by_name == expected
    assert len(members) == 20

"""The index file: what is written is read back, and anything invalid or hostile is refused."""

import os
import pickle
import random
import struct
import subprocess
import sys
import tarfile
import threading
import tracemalloc
import zlib

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import IndexFileError, IndexVersionError
from penstock.shards.codecs import zstd
from penstock.shards.index import (
    INDEX_MAGIC,
    MAX_INDEX_BYTES,
    IndexBinding,
    OpenedShard,
    ShardIndex,
    _IndexBody,
    build_index,
    decode_index,
    encode_index,
    index_path_beside,
    index_path_in_cache,
    load_index,
    save_index,
)
from penstock.shards.scan import scan_shard
from penstock.shards.tar import TarMembers
from penstock.testing import corrupt

SIZE = 16 << 20
FIELDS = _IndexBody.__struct_fields__


def make_index(count=3, compression=None, crcs=True):
    names = [f"{number:04d}{suffix}" for number in range(count) for suffix in (".jpg", "_features.npz")]
    offsets = [512 + 1024 * number for number in range(2 * count)]
    members = TarMembers(names, offsets, [7] * (2 * count), [("link", 3, "link")])
    checksums = np.arange(2 * count, dtype=np.uint32) if crcs else None
    return build_index(members, OpenedShard(IndexBinding(SIZE, 123), compression, SIZE), crcs=checksums)


def comparable(index: ShardIndex):
    """Return everything in an index in a form that can be compared."""
    arrays = {"starts", "suffix_ids", "offsets", "lengths", "crcs"}
    return {
        name: value.tolist() if name in arrays and value is not None else value
        for name, value in vars(index).items()
        if name != "sample_ids"
    }


def with_checksum(body: bytes, claim: int | None = None) -> bytes:
    """Return a file with a valid checksum around any body."""
    rest = struct.pack("<Q", len(body) if claim is None else claim) + zstd.compress(body)
    return INDEX_MAGIC + struct.pack("<I", zlib.crc32(rest)) + rest


def fields_of(index: ShardIndex) -> list:
    return msgspec.msgpack.decode(zstd.decompress(encode_index(index)[20:], max_length=1 << 30))


def forged(index: ShardIndex, **changes) -> bytes:
    """Return the file of an index with some of its fields replaced."""
    values = dict(zip(FIELDS, fields_of(index), strict=True)) | changes
    return with_checksum(msgspec.msgpack.encode([values[name] for name in FIELDS]))


def numbers(dtype, *values):
    return np.array(values, dtype).tobytes()


# -- writing and reading back --------------------------------------------------------------------------------------


@pytest.mark.parametrize("crcs", [True, False])
@pytest.mark.parametrize("compression", [None, "gz", "zst"])
@pytest.mark.parametrize("count", [0, 1, 1000])
def test_an_index_is_decoded_as_it_was_encoded(count, compression, crcs):
    index = make_index(count, compression, crcs)
    assert comparable(decode_index(encode_index(index))) == comparable(index)


NAMES = st.lists(st.text(st.characters(codec="utf-8"), max_size=12), max_size=20)


@settings(deadline=None)
@given(NAMES, st.integers(0, 2**62), st.integers(-(2**62), 2**63), st.sampled_from([None, "gz", "zst"]), st.data())
def test_any_index_is_decoded_as_it_was_encoded(names, size, mtime_ns, compression, data):
    offsets = sorted(data.draw(st.lists(st.integers(0, size), min_size=len(names), max_size=len(names))))
    lengths = [data.draw(st.integers(0, size - offset)) for offset in offsets]
    crcs = data.draw(st.none() | st.lists(st.integers(0, 2**32 - 1), min_size=len(names), max_size=len(names)))
    index = build_index(
        TarMembers(names, offsets, lengths, [(name, 5, name) for name in names[:3]]),
        OpenedShard(IndexBinding(size, mtime_ns), compression, size),
        crcs=None if crcs is None else np.array(crcs, np.uint32),
    )
    assert comparable(decode_index(encode_index(index))) == comparable(index)


def test_an_index_is_small():
    assert len(encode_index(make_index(10_000))) < 10 * 20_000


def test_a_saved_index_is_loaded_from_beside_its_shard(tmp_path):
    shard = tmp_path / "a.tar"
    assert save_index(make_index(), shard) == index_path_beside(shard) == tmp_path / "a.tar.pidx"
    assert comparable(load_index(shard)) == comparable(make_index())
    assert not index_path_in_cache(shard).exists()


def test_saving_leaves_no_other_files(tmp_path):
    for count in (3, 4, 5):
        save_index(make_index(count), tmp_path / "a.tar")
    assert os.listdir(tmp_path) == ["a.tar.pidx"]


def test_other_users_can_read_the_index(tmp_path):
    assert save_index(make_index(), tmp_path / "a.tar").stat().st_mode & 0o444 == 0o444


def test_without_a_stored_index_load_returns_none(tmp_path):
    assert load_index(tmp_path / "a.tar") is None


# -- a folder that cannot be written -------------------------------------------------------------------------------


@pytest.fixture
def readonly(tmp_path):
    """A folder that cannot be written; root ignores mode bits, so for root it is a read-only mount."""
    folder = tmp_path / "readonly"
    folder.mkdir()
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        commands = [["mount", "--bind", folder, folder], ["mount", "-o", "remount,bind,ro", folder]]
        if any(subprocess.run(command, capture_output=True).returncode for command in commands):
            subprocess.run(["umount", folder], capture_output=True)
            pytest.skip("root ignores mode bits, and this machine does not allow mounts")
        yield folder
        subprocess.run(["umount", folder], check=True)
    else:
        folder.chmod(0o555)
        yield folder
        folder.chmod(0o755)


def test_the_index_of_a_read_only_folder_is_stored_in_the_cache(readonly, private_cache):
    shard = readonly / "a.tar"
    saved = save_index(make_index(), shard)
    assert saved == index_path_in_cache(shard)
    assert private_cache in saved.parents
    assert comparable(load_index(shard)) == comparable(make_index())
    assert os.listdir(readonly) == []
    assert os.listdir(saved.parent) == [saved.name]


def test_shards_with_the_same_name_have_different_cache_files(tmp_path):
    assert index_path_in_cache(tmp_path / "x" / "a.tar") != index_path_in_cache(tmp_path / "y" / "a.tar")


def test_all_paths_of_one_shard_have_the_same_cache_file(tmp_path, monkeypatch):
    (tmp_path / "a.tar").touch()
    (tmp_path / "link.tar").symlink_to(tmp_path / "a.tar")
    monkeypatch.chdir(tmp_path)
    assert index_path_in_cache("a.tar") == index_path_in_cache(tmp_path / "a.tar") == index_path_in_cache("link.tar")


# -- writers that die or fail --------------------------------------------------------------------------------------

KILLED_WRITER = """
import os, signal, sys
from penstock.shards.index import INDEX_MAGIC, MAX_INDEX_BYTES, _IndexBody, load_index, save_index
index = load_index(sys.argv[1])
os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
save_index(index, sys.argv[1])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL on this platform")
def test_a_killed_writer_leaves_the_old_index(tmp_path):
    shard = tmp_path / "a.tar"
    old = save_index(make_index(), shard).read_bytes()
    killed = subprocess.run([sys.executable, "-c", KILLED_WRITER, str(shard)])
    assert killed.returncode == -9
    assert index_path_beside(shard).read_bytes() == old
    assert comparable(load_index(shard)) == comparable(make_index())


def test_a_writer_that_fails_cleans_up_and_leaves_the_old_index(tmp_path, monkeypatch):
    shard = tmp_path / "a.tar"
    old = save_index(make_index(), shard).read_bytes()

    def fail(*_paths):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        save_index(make_index(5), shard)
    assert os.listdir(tmp_path) == ["a.tar.pidx"]
    assert index_path_beside(shard).read_bytes() == old


def test_a_reader_sees_the_old_index_or_the_new_one_but_never_a_partial_one(tmp_path):
    shard = tmp_path / "a.tar"
    save_index(make_index(2), shard)

    def write():
        for number in range(100):
            save_index(make_index(2 + number % 3), shard)

    writer = threading.Thread(target=write)
    writer.start()
    lengths = set()
    while writer.is_alive():
        lengths.add(len(load_index(shard)))
    writer.join()
    assert lengths <= {2, 3, 4}
    assert lengths


# -- corrupt files -------------------------------------------------------------------------------------------------


def test_a_flipped_bit_anywhere_is_detected():
    data = encode_index(make_index(20))
    for offset in range(len(data)):
        with pytest.raises(IndexFileError):
            decode_index(corrupt.flip_bit(data, offset, offset % 8))


def test_an_index_truncated_anywhere_is_refused():
    data = encode_index(make_index(20))
    for length in range(len(data)):
        with pytest.raises(IndexFileError):
            decode_index(corrupt.truncate(data, length))


def test_an_index_of_another_version_is_reported_as_such():
    with pytest.raises(IndexVersionError, match="index version b'1'"):
        decode_index(corrupt.overwrite(encode_index(make_index()), 7, b"1"))


@pytest.mark.parametrize("data", [b"", b"{}", b"<html>404</html>", bytes(1000)])
def test_a_file_that_is_not_an_index_is_reported_as_such(data):
    with pytest.raises(IndexFileError, match="is not an index file"):
        decode_index(data)


def test_the_error_of_a_bad_index_has_its_path(tmp_path):
    index_path_beside(tmp_path / "a.tar").write_bytes(b"nonsense")
    with pytest.raises(IndexFileError) as caught:
        load_index(tmp_path / "a.tar")
    assert caught.value.where() == {"shard": str(tmp_path / "a.tar.pidx"), "stage": "index"}


# -- hostile files: the checksum is valid, the content is false ----------------------------------------------------


def test_forging_without_changes_gives_the_same_index():
    assert comparable(decode_index(forged(make_index()))) == comparable(make_index())


SMALL_INDEX = make_index(1)
FALSE_FIELDS = {
    "an offset beyond the shard": {"offsets": numbers("<i8", 512, SIZE + 1)},
    "a range that ends beyond the shard": {"lengths": numbers("<i8", 7, SIZE)},
    "a length that overflows when added": {"lengths": numbers("<i8", 7, 2**63 - 1)},
    "an offset that overflows when added": {"offsets": numbers("<i8", 512, 2**63 - 1)},
    "a negative length": {"lengths": numbers("<i8", 7, -1)},
    "a negative offset": {"offsets": numbers("<i8", -1, 1536)},
    "the most negative offset": {"offsets": numbers("<i8", -(2**63), 1536)},
    "offsets that are too few": {"offsets": numbers("<i8", 512)},
    "lengths that are too many": {"lengths": numbers("<i8", 7, 7, 7)},
    "a ragged column": {"offsets": numbers("<i8", 512, 1536) + b"\0"},
    "a ragged checksum column": {"crcs": b"\0\0\0"},
    "checksums that are too few": {"crcs": numbers("<u4", 0)},
    "a suffix id out of range": {"suffix_ids": numbers("<u4", 0, 2)},
    "the largest suffix id": {"suffix_ids": numbers("<u4", 0, 2**32 - 1)},
    "no suffixes at all": {"suffixes": []},
    "a sample without parts": {"keys": ["0000", "x"], "parts_per_sample": numbers("<u4", 2, 0)},
    "part counts that do not add up": {"parts_per_sample": numbers("<u4", 3)},
    "a part count of four billion": {"parts_per_sample": numbers("<u4", 2**32 - 1)},
    "more keys than samples": {"keys": ["0000", "x"]},
    "duplicate keys": {"keys": ["0000", "0000"], "parts_per_sample": numbers("<u4", 1, 1)},
    "a negative size": {"size": -1, "data_length": -1},
    "a negative data length": {"compression": "gz", "data_length": -1},
    "a plain shard longer than its file": {"data_length": SIZE + 512},
    "a shard beyond 63 bits": {"size": 2**64 - 1, "data_length": 2**64 - 1},
    "a compressed shard beyond 63 bits": {"compression": "gz", "data_length": 2**63},
    "an unknown compression": {"compression": "xz"},
    "a size that is text": {"size": "1048576"},
    "a size that is a fraction": {"size": 0.5},
    "keys that are numbers": {"keys": [1]},
    "keys that are nothing": {"keys": None},
    "columns that are lists": {"offsets": [512, 1536]},
    "notes of another shape": {"notes": [("link", 3)]},
    "notes deeply nested": {"notes": [[[[[[]]]]]]},
    "reasons without an offset": {"unreadable": {"a": "is a GNU sparse file"}},
}


@pytest.mark.parametrize("change", FALSE_FIELDS)
def test_false_content_with_a_valid_checksum_is_refused(change):
    with pytest.raises(IndexFileError):
        decode_index(forged(SMALL_INDEX, **FALSE_FIELDS[change]))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x90",
        msgspec.msgpack.encode(dict.fromkeys(FIELDS)),
        msgspec.msgpack.encode(fields_of(SMALL_INDEX)[:-2]),
        msgspec.msgpack.encode([*fields_of(SMALL_INDEX), 1]),
        msgspec.msgpack.encode(fields_of(SMALL_INDEX)) + b"\0",
        b"\x9e" + msgspec.msgpack.encode(fields_of(SMALL_INDEX))[1:] + b"\x91" * 5000 + b"\x90",
        b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\x9c\x01\x01\xc0\x01\xdd\xff\xff\xff\xff",
        b"\x9c\x01\x01\xc0\x01\x91\xa2\xff\xfe",
    ],
    ids=[
        "nothing",
        "not msgpack",
        "an empty list",
        "a mapping",
        "a field missing, besides the ETag",
        "a field too many",
        "a byte too many",
        "a nested field too many",
        "deeply nested lists",
        "a list of four billion",
        "four billion keys",
        "a key that is not UTF-8",
    ],
)
def test_a_body_that_is_not_an_index_is_refused(body):
    with pytest.raises(IndexFileError):
        decode_index(with_checksum(body))


@pytest.mark.parametrize("claim", [0, 1, MAX_INDEX_BYTES + 1, 2**64 - 1])
def test_a_false_claim_about_the_length_of_the_body_is_refused(claim):
    body = msgspec.msgpack.encode(fields_of(SMALL_INDEX))
    with pytest.raises(IndexFileError):
        decode_index(with_checksum(body, claim))


def test_a_frame_without_a_content_length_is_refused():
    packed = b"\x28\xb5\x2f\xfd\x00\x58\x01\x00\x00"  # a zstd frame without its size, with an empty block
    rest = struct.pack("<Q", 100) + packed
    with pytest.raises(IndexFileError):
        decode_index(INDEX_MAGIC + struct.pack("<I", zlib.crc32(rest)) + rest)


@pytest.mark.parametrize("claim", [None, MAX_INDEX_BYTES, 2**63])
def test_a_false_content_length_does_not_allocate_memory(claim):
    """The header of the frame says 3 GiB, and the frame holds almost nothing."""
    frame = bytearray(zstd.compress(bytes(70_000)))
    assert frame[4] >> 6 == 2, "the size lies in the four bytes after the window"
    window = 0 if frame[4] & 0x20 else 1
    frame[5 + window : 9 + window] = struct.pack("<I", 3 << 30)
    rest = struct.pack("<Q", 3 << 30 if claim is None else claim) + bytes(frame)
    data = INDEX_MAGIC + struct.pack("<I", zlib.crc32(rest)) + rest
    tracemalloc.start()
    try:
        with pytest.raises(IndexFileError):
            decode_index(data)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", [1 << 20, 1 << 28], ids=["body", "file"])
def test_an_index_too_large_for_its_shard_is_not_inflated(tmp_path, length):
    """Zeros compress well: a few kilobytes beside a small shard could take gigabytes, in each of 32 threads."""
    data = with_checksum(bytes(1 << 20))
    with open(index_path_beside(tmp_path / "a.tar"), "wb") as file:
        file.write(data)
        file.truncate(len(data) if length == 1 << 20 else length)
    tracemalloc.start()
    try:
        with pytest.raises(IndexFileError, match=r"claims 1048576 bytes|has 268435456 bytes"):
            load_index(tmp_path / "a.tar", IndexBinding(100 * 512, 1))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_the_longest_names_fit_into_an_index(tmp_path):
    """A byte that is not UTF-8 becomes four characters, and a header has up to 255 of them."""
    path = tmp_path / "a.tar"
    names = ["\udcff" * 150 + "/" + "\udcff" * 90 + f"{number:05d}.x" for number in range(2000)]
    headers = (tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape") for name in names)
    path.write_bytes(b"".join(headers) + bytes(1024))
    index = scan_shard(path)
    save_index(index, path)
    assert comparable(load_index(path, index.binding)) == comparable(index)
    assert all(len(key) > 4 * 240 for key in index.keys)


def test_an_index_file_larger_than_any_index_is_not_read(tmp_path):
    with index_path_beside(tmp_path / "a.tar").open("wb") as file:
        file.write(encode_index(SMALL_INDEX))
        file.truncate(1 << 40)
    with pytest.raises(IndexFileError, match="bytes"):
        load_index(tmp_path / "a.tar")


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="this platform has no /dev/zero")
def test_an_index_that_is_a_device_is_not_read(tmp_path):
    index_path_beside(tmp_path / "a.tar").symlink_to("/dev/zero")
    assert load_index(tmp_path / "a.tar") is None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this platform has no named pipes")
def test_an_index_that_is_a_named_pipe_is_refused_without_waiting(tmp_path):
    os.mkfifo(index_path_beside(tmp_path / "a.tar"))
    assert load_index(tmp_path / "a.tar") is None


class FileCreatingPickle:
    """An object whose unpickling creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_pickle_is_never_loaded(tmp_path, wrapped):
    pickled = pickle.dumps(FileCreatingPickle(str(tmp_path / "created")), protocol=0)
    with pytest.raises(IndexFileError):
        decode_index(with_checksum(pickled) if wrapped else pickled)
    assert not (tmp_path / "created").exists()


# -- mutations -----------------------------------------------------------------------------------------------------


def refused_or_sound(data):
    """Return whether the data is refused; otherwise check that the index can be used."""
    try:
        index = decode_index(data)
    except IndexFileError:
        return True
    for number in range(len(index)):
        for part in index.sample(number).parts:
            assert 0 <= part.offset <= part.offset + part.length <= index.data_length
    return False


def test_twenty_thousand_mutations_of_the_body_raise_nothing_but_index_errors():
    rng = random.Random(2)
    seeds = [msgspec.msgpack.encode(fields_of(make_index(count, crcs=count > 1))) for count in (1, 2, 5)]
    refused = [refused_or_sound(with_checksum(corrupt.mutate(rng.choice(seeds), rng))) for _ in range(20_000)]
    assert 0.1 < sum(refused) / len(refused) < 1


def test_mutations_of_the_file_are_all_refused():
    rng = random.Random(3)
    data = encode_index(make_index(5))
    mutants = [mutant for mutant in (corrupt.mutate(data, rng) for _ in range(10_000)) if mutant != data]
    assert len(mutants) > 9_000
    assert all(refused_or_sound(mutant) for mutant in mutants)

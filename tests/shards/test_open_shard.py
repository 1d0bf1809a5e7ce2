import errno
import gzip
import random

import pytest
from tests.support.hostile import tar_header

from penstock.errors import StorageError, TarError
from penstock.shards import open_shard as open_shard_module
from penstock.shards.codecs import zstd
from penstock.shards.open_shard import CompressedShard, PlainShard, compression_from_name, open_shard
from penstock.shards.tar import walk_tar
from penstock.storage import local
from penstock.testing import corrupt, tar_bytes

DATA = random.Random(0).randbytes(3_000_000)
COMPRESSORS = {".tar.gz": lambda data: gzip.compress(data, 1), ".tar.zst": zstd.compress}
COMPRESSED = pytest.mark.parametrize("ending", list(COMPRESSORS))


@pytest.fixture
def packed(tmp_path):
    """A function that writes compressed data to a file with an ending and returns the path."""

    def pack(ending, data=DATA):
        path = tmp_path / f"a{ending}"
        path.write_bytes(COMPRESSORS[ending](data))
        return path

    return pack


@pytest.mark.parametrize(
    ("name", "compression"),
    [
        ("a.tar", None),
        ("a.tar.gz", "gz"),
        ("A.TGZ", "gz"),
        ("a.tar.zst", "zst"),
        ("a.tar.zstd", "zst"),
        ("a.gz.tar", None),
        ("a.gz", None),
        ("a.zst", None),
    ],
)
def test_the_compression_is_taken_from_the_name(name, compression):
    assert compression_from_name(name) == compression


def test_a_plain_shard_is_read_in_any_order(tmp_path):
    (tmp_path / "a.tar").write_bytes(DATA)
    with open_shard(tmp_path / "a.tar") as shard:
        assert isinstance(shard, PlainShard)
        assert (shard.size, shard.end, shard.compression) == (len(DATA), len(DATA), None)
        assert shard.read_at(2_000_000, 10) == DATA[2_000_000:2_000_010]
        assert shard.read_at(5, 10) == DATA[5:15]


@COMPRESSED
def test_a_compressed_shard_is_read_forward_with_gaps(packed, ending):
    with open_shard(packed(ending)) as shard:
        assert isinstance(shard, CompressedShard)
        for offset, length in [(0, 512), (512, 100), (700, 0), (700, 300), (2_500_000, 10_000)]:
            assert shard.read_at(offset, length) == DATA[offset : offset + length]
            assert shard.end == offset + length


@COMPRESSED
def test_size_and_mtime_of_a_compressed_shard_are_those_of_the_file(packed, ending):
    path = packed(ending)
    with open_shard(path) as shard:
        assert (shard.path, shard.size, shard.mtime_ns) == (str(path), path.stat().st_size, path.stat().st_mtime_ns)


@COMPRESSED
def test_a_read_past_the_end_returns_nothing_and_the_end_is_known(packed, ending):
    with open_shard(packed(ending)) as shard:
        assert shard.read_at(len(DATA) - 5, 100) == DATA[-5:]
        assert shard.read_at(len(DATA) + 1000, 10) == b""
        assert shard.end == len(DATA)


@COMPRESSED
def test_a_compressed_shard_cannot_be_read_backwards(packed, ending):
    with open_shard(packed(ending)) as shard:
        shard.read_at(1000, 10)
        with pytest.raises(ValueError, match="cannot go back from 1010 to 1009"):
            shard.read_at(1009, 1)


@COMPRESSED
@pytest.mark.parametrize("share", [0.0005, 0.5, 0.999])
def test_a_truncated_stream_is_an_error_with_shard_and_offset(packed, ending, share):
    path = packed(ending)
    data = path.read_bytes()
    path.write_bytes(corrupt.truncate(data, int(len(data) * share)))
    with open_shard(path) as shard, pytest.raises(TarError, match="damaged or cut short") as caught:
        shard.read_at(len(DATA), 1)
    assert caught.value.shard == str(path)
    assert caught.value.stage == "decompress"
    assert 0 <= caught.value.offset < len(DATA)
    assert caught.value.advice


@COMPRESSED
def test_a_damaged_stream_is_a_tar_error(packed, ending):
    path = packed(ending)
    data = path.read_bytes()
    rng = random.Random(1)
    for _ in range(30):
        path.write_bytes(corrupt.overwrite(data, rng.randrange(4, len(data) - 300), rng.randbytes(200)))
        with open_shard(path) as shard, pytest.raises(TarError, match="damaged or cut short"):
            shard.read_at(len(DATA), 1)


@pytest.mark.parametrize("content", [b"", b"x", b"<html>404</html>", tar_bytes([("a.jpg", b"a")])])
@COMPRESSED
def test_a_file_that_is_not_compressed_is_a_tar_error(tmp_path, ending, content):
    path = tmp_path / f"a{ending}"
    path.write_bytes(content)
    with open_shard(path) as shard, pytest.raises(TarError) as caught:
        walk_tar(shard, str(path))
    assert caught.value.shard == str(path)


def test_a_decompression_bomb_is_refused_after_its_first_part(tmp_path):
    """400 MB of zeros compress to some KB, which no ordinary shard does."""
    path = tmp_path / "bomb.tar.zst"
    path.write_bytes(zstd.compress(tar_header("zeros.bin", 400 << 20)) + 100 * zstd.compress(bytes(4 << 20)))
    assert path.stat().st_size < 100_000
    with open_shard(path) as shard:
        with pytest.raises(TarError, match="decompression bomb") as caught:
            walk_tar(shard, str(path))
        assert (
            open_shard_module.UNCHECKED_EXPANSION_BYTES
            < shard.end
            <= open_shard_module.UNCHECKED_EXPANSION_BYTES + (2 << 20)
        )
    assert caught.value.shard == str(path)
    assert caught.value.advice


def test_a_small_tar_of_zeros_is_accepted(packed):
    data = tar_header("zeros.bin", 4 << 20) + bytes((4 << 20) + 1024)
    path = packed(".tar.zst", data)
    assert len(data) > open_shard_module.MAX_EXPANSION * path.stat().st_size
    with open_shard(path) as shard:
        assert list(walk_tar(shard, str(path)).lengths) == [4 << 20]


@pytest.mark.parametrize("ending", [".tar", *COMPRESSORS])
def test_closing_twice_is_harmless(tmp_path, ending):
    path = tmp_path / f"a{ending}"
    path.write_bytes(COMPRESSORS.get(ending, bytes)(DATA))
    shard = open_shard(path)
    shard.read_at(0, 10)
    shard.close()
    shard.close()


@pytest.mark.parametrize("ending", [".tar", *COMPRESSORS])
def test_a_missing_shard_is_an_error_with_its_path(tmp_path, ending):
    with pytest.raises(StorageError, match="cannot open") as caught:
        open_shard(tmp_path / f"none{ending}")
    assert caught.value.shard == str(tmp_path / f"none{ending}")


@COMPRESSED
def test_a_stale_handle_of_a_compressed_shard_is_recovered(packed, ending, monkeypatch):
    path, reads, pread = packed(ending), iter(range(1000)), local.pread

    def read_with_one_stale_handle(*arguments):
        if next(reads) == 1:
            raise OSError(errno.ESTALE, "Stale file handle")
        return pread(*arguments)

    monkeypatch.setattr(local, "pread", read_with_one_stale_handle)
    with open_shard(path) as shard:
        assert shard.read_at(0, len(DATA)) == DATA
    assert next(reads) > 2


@COMPRESSED
def test_a_disk_failure_is_not_reported_as_damage_of_a_compressed_shard(packed, ending, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    with open_shard(packed(ending)) as shard:
        monkeypatch.setattr(local, "pread", fail)
        with pytest.raises(StorageError, match="cannot read: Input/output error"):
            shard.read_at(0, 100)

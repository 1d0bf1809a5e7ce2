"""Checks of bytes against the CRC32 of the index."""

import dataclasses

import deflate
import numpy as np
import pytest

from penstock.data.read.block_layout import NO_CRC, Extent
from penstock.data.read.checksum import ExtentChecksums, check_crc
from penstock.errors import DecodeError
from penstock.shards.scan import scan_shard
from penstock.testing import IMAGENET, make_shards


def test_a_part_in_several_pieces_must_have_its_crc():
    pieces = memoryview(b"ab"), memoryview(b"c")
    check_crc(pieces, deflate.crc32(b"abc"))
    check_crc(pieces, NO_CRC)
    with pytest.raises(DecodeError, match="CRC32 does not match the index"):
        check_crc(pieces, deflate.crc32(b"abd"))


@pytest.fixture
def shard(tmp_path):
    """The bytes of a shard, and its index with the CRC32 of every part."""
    (path,) = make_shards(tmp_path, IMAGENET, samples=3, scale=0.1)
    data, index = path.read_bytes(), scan_shard(path)
    ranges = zip(index.offsets.tolist(), index.lengths.tolist(), strict=True)
    crcs = np.array([deflate.crc32(data[offset : offset + length]) for offset, length in ranges], np.uint32)
    return bytearray(data), dataclasses.replace(index, crcs=crcs)


def test_extents_with_a_damaged_part_are_found(shard):
    data, index = shard
    half = len(data) // 2
    extents = [Extent(0, half, 0), Extent(half, len(data) - half, half)]
    checksums = ExtentChecksums([index])
    assert checksums.damaged(0, extents, memoryview(data)) == []
    data[int(index.offsets.max())] ^= 1
    assert checksums.damaged(0, extents, memoryview(data)) == [extents[1]]


def test_without_checksums_in_the_index_no_extent_counts_as_damaged(shard):
    data, index = shard
    data[int(index.offsets.min())] ^= 1
    checksums = ExtentChecksums([dataclasses.replace(index, crcs=None)])
    assert checksums.damaged(0, [Extent(0, len(data), 0)], memoryview(data)) == []

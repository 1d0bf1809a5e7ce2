"""Reads through a shard cache in front of a store return the same bytes of the same version, whatever fails."""

import dataclasses
import os

import deflate
import numpy as np
import pytest
from tests.support import loader_helpers as loading

from penstock.data.read.block_layout import Extent
from penstock.data.read.shard_reader import ShardReader
from penstock.errors import StorageError
from penstock.options import CacheOptions
from penstock.shards.codecs import zstd
from penstock.shards.scan import index_shard
from penstock.testing import REID, make_shards


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("reid"), REID, samples=20, shards=2, scale=0.1)


@pytest.fixture
def opened(tmp_path):
    """A function that opens shards with a cache in front of them."""
    made = []

    def opened(paths, indexes=None, folder=tmp_path / "fast"):
        indexes = indexes or [index_shard(path) for path in paths]
        made.append(ShardReader(paths, indexes, cache=CacheOptions(str(folder), 1 << 30)))
        return made[-1]

    yield opened
    for each in made:
        each.close()


def wait_for_copies(shards):
    """Wait until every shard that was requested has been copied."""
    loading.wait_for_copies(shards._copies.tier)


def read(shards, number, size):
    """Read a whole shard in two extents."""
    half = size // 2
    memory = memoryview(bytearray(size))
    count = shards.read(number, [Extent(0, half, 0), Extent(half, size - half, half)], memory)
    assert count == size
    return bytes(memory)


def entries(folder):
    return list(folder.glob("entry-*"))


def test_a_copied_shard_is_not_read_from_the_store_again(opened, local, remote, proxy):
    shards = opened(remote)
    for number, path in enumerate(local):
        assert read(shards, number, path.stat().st_size) == path.read_bytes()
    wait_for_copies(shards)
    requests = proxy.counts.requests
    for number, path in enumerate(local):
        assert read(shards, number, path.stat().st_size) == path.read_bytes()
    assert proxy.counts.requests == requests


def test_a_copy_of_an_old_version_is_not_used_for_the_new_version(opened, local, remote, bucket):
    size = local[0].stat().st_size
    old = opened(remote)
    read(old, 0, size)
    wait_for_copies(old)
    data = bytearray(local[0].read_bytes())
    data[512] ^= 1  # the length stays the same
    bucket.put(f"reid/{local[0].name}", bytes(data))
    new = opened(remote, [index_shard(path) for path in remote])
    assert read(new, 0, size) == bytes(data)
    assert read(old, 0, size) == local[0].read_bytes()  # the version it was indexed as is still in the cache


def test_an_overwritten_version_without_a_copy_is_an_error(opened, local, remote, bucket, tmp_path):
    shards = opened(remote)
    bucket.put(f"reid/{local[0].name}", local[0].read_bytes() + bytes(512))
    with pytest.raises(StorageError, match="has changed since it was indexed"):
        read(shards, 0, local[0].stat().st_size)
    wait_for_copies(shards)
    assert entries(tmp_path / "fast") == []


@pytest.mark.parametrize("damage", ["flipped", "cut", "deleted"])
def test_a_damaged_copy_is_replaced_by_reads_from_the_store(opened, local, remote, tmp_path, damage):
    index, data = index_shard(remote[0]), local[0].read_bytes()
    parts = zip(index.offsets.tolist(), index.lengths.tolist(), strict=True)
    crcs = np.array([deflate.crc32(data[offset : offset + length]) for offset, length in parts], np.uint32)
    shards = opened(remote[:1], [dataclasses.replace(index, crcs=crcs)])
    read(shards, 0, len(data))
    wait_for_copies(shards)
    (entry,) = entries(tmp_path / "fast")
    if damage == "deleted":
        entry.unlink()
    elif damage == "cut":
        os.truncate(entry, 100)
    else:
        with open(entry, "r+b") as stream:
            stream.seek(int(index.offsets[3]) + 2)
            stream.write(b"\x00\xff\x00\xff")
    assert read(shards, 0, len(data)) == data
    if damage == "flipped":  # the other kinds are detected at once, and the copy is made again
        assert entries(tmp_path / "fast") == [], "a later run would use it"


def test_a_compressed_shard_is_read_from_its_copy(opened, local, bucket, proxy):
    bucket.put("z/a.tar.zst", zstd.compress(local[0].read_bytes()))
    url = bucket.url("z/a.tar.zst")
    index, data = index_shard(url), local[0].read_bytes()
    shards = opened([url], [index])
    assert read(shards, 0, index.data_length) == data[: index.data_length]
    wait_for_copies(shards)
    requests = proxy.counts.requests
    assert read(shards, 0, index.data_length) == data[: index.data_length]
    assert proxy.counts.requests == requests


def test_files_of_a_slow_disk_are_copied_too(opened, local, tmp_path):
    shards = opened([str(path) for path in local])
    size = local[1].stat().st_size
    read(shards, 1, size)
    wait_for_copies(shards)
    assert read(shards, 1, size) == local[1].read_bytes()
    assert shards._copies.tier.stats().hits == 1

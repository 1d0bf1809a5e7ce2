"""Shards in a store are indexed by reading their headers; the index is stored beside them and bound to a version."""

import logging

import numpy as np
import pytest
from tests.support.proxy import Flip, Status

from penstock.data.read.block_layout import Extent
from penstock.data.read.shard_reader import ShardReader
from penstock.errors import StorageError
from penstock.shards.index import (
    index_path_beside,
    index_path_in_cache,
)
from penstock.shards.open_shard import open_shard
from penstock.shards.pack.options import PackOptions
from penstock.shards.pack.plan import make_plan
from penstock.shards.pack.sources import find_pack_sources
from penstock.shards.pack.write import WORK_FOLDER, pack_shard
from penstock.shards.scan import index_shard, index_shards, scan_shard
from penstock.storage.object_store.url import parse_url
from penstock.testing import IMAGENET, REID, make_shards, tar_bytes

LONG = [(f"{number:04d}.bin", bytes([number]) * 200_000) for number in range(12)]


@pytest.fixture
def long_shard(bucket):
    """The URL and the bytes of a shard of long members."""
    data = tar_bytes(LONG)
    bucket.put("long_shard.tar", data)
    return bucket.url("long_shard.tar"), data


def same(one, other):
    columns = ("starts", "suffix_ids", "offsets", "lengths")
    return one.keys == other.keys and all(np.array_equal(getattr(one, c), getattr(other, c)) for c in columns)


def test_indexing_reads_headers_and_does_not_download_the_shard(long_shard, proxy, tmp_path):
    url, data = long_shard
    (tmp_path / "long_shard.tar").write_bytes(data)
    assert same(scan_shard(url), scan_shard(tmp_path / "long_shard.tar"))
    assert proxy.counts.bytes < len(data) / 10
    assert proxy.counts.requests <= len(LONG) + 4


def test_many_short_members_take_few_requests(bucket, proxy):
    bucket.put("short.tar", tar_bytes((f"{number:05d}.cls", b"7") for number in range(2000)))
    assert len(scan_shard(bucket.url("short.tar"))) == 2000
    assert proxy.counts.requests < 8


@pytest.mark.parametrize("compression", ["gz", "zst"])
def test_compressed_shards_are_streamed(bucket, tmp_path, compression):
    [path] = make_shards(tmp_path, IMAGENET, samples=6, compression=compression, scale=0.1)
    bucket.put(path.name, path.read_bytes())
    url = bucket.url(path.name)
    assert same(scan_shard(url), scan_shard(path))
    with open_shard(url) as shard, open_shard(path) as local:
        assert shard.read_at(512, 3000) == local.read_at(512, 3000)


def test_the_index_is_written_beside_the_shard_and_read_from_there(long_shard, bucket, proxy):
    url, _ = long_shard
    first = index_shard(url)
    assert bucket.keys() == ["long_shard.tar", "long_shard.tar.pidx"]
    assert first.binding.etag is not None
    before = proxy.counts.requests
    [again] = index_shards([url])
    assert not again.rebuilt
    assert same(again.index, first)
    assert proxy.counts.requests == before + 2  # one for the shard's version, one for the index
    assert not index_path_in_cache(url).exists()


def test_the_index_of_a_read_only_bucket_is_stored_in_the_cache(long_shard, bucket, proxy):
    url, _ = long_shard
    proxy.inject(Status(403), lambda request: request.method == "PUT")
    index_shard(url)
    assert bucket.keys() == ["long_shard.tar"]
    assert index_path_in_cache(url).exists()
    [again] = index_shards([url])
    assert not again.rebuilt


def test_a_403_for_a_missing_index_leads_to_an_index_in_the_cache(long_shard, proxy):
    """S3 answers 403 instead of 404 to clients that may read objects but not list them."""
    url, _ = long_shard
    proxy.inject(Status(403), lambda request: request.path.endswith(".pidx"))
    index_shard(url)
    [again] = index_shards([url])
    assert not again.rebuilt


def test_an_overwritten_shard_is_indexed_again(long_shard, bucket, caplog):
    url, _ = long_shard
    index_shard(url)
    bucket.put("long_shard.tar", tar_bytes(LONG[:3]))
    assert len(index_shard(url)) == 3
    assert "has changed since it was indexed" in caplog.text


@pytest.fixture(scope="module")
def packed_locally(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")
    make_shards(folder / "in", REID, samples=12, scale=0.1)
    options = PackOptions()
    [task] = make_plan(list(find_pack_sources(str(folder / "in"), options)), options).tasks()
    (folder / WORK_FOLDER).mkdir()
    pack_shard(task, folder)
    return folder / task.name


@pytest.fixture
def packed(bucket, packed_locally):
    """The URL and the local path of a packed shard that was uploaded together with its index."""
    path = packed_locally
    for file in (path, index_path_beside(path)):
        bucket.put(file.name, file.read_bytes())
    return bucket.url(path.name), path


def test_an_uploaded_index_is_used_with_its_checksums(packed, proxy):
    url, path = packed
    [scanned] = index_shards([url])
    assert not scanned.rebuilt
    assert scanned.index.crcs is not None
    assert same(scanned.index, index_shard(path))
    assert scanned.index.binding.etag is not None
    assert proxy.counts.bytes < path.stat().st_size
    before = proxy.counts.requests
    list(index_shards([url]))
    assert proxy.counts.requests == before + 2  # the index is bound to the object now


def test_an_uploaded_index_of_another_shard_is_not_used(packed, bucket):
    url, path = packed
    key = parse_url(url).key
    data = path.read_bytes()
    bucket.put(key, b"x" * 100 + data[100:] if not data.startswith(b"x") else b"y" + data[1:])
    [scanned] = index_shards([url])
    assert scanned.index is None or scanned.index.crcs is None


def read_block(paths, indexes):
    index = indexes[0]
    first, last = int(index.offsets.min()), int((index.offsets + index.lengths).max())
    into = memoryview(bytearray(last - first))
    ShardReader(paths, indexes).read(0, [Extent(first, last - first, 0)], into)
    return bytes(into)


def test_a_flipped_byte_is_read_again(packed, proxy, caplog):
    url, path = packed
    index = index_shard(url)
    expected = read_block([str(path)], [index_shard(path)])
    proxy.inject(Flip(at=int(index.offsets[0]) + 3), times=1)
    assert read_block([url], [index]) == expected
    assert "came damaged; reading them again" in caplog.text
    assert proxy.counts.faults == 1


def test_a_lasting_bit_flip_is_read_twice_and_then_delivered(packed, proxy, caplog):
    url, _ = packed
    index = index_shard(url)
    proxy.inject(Flip(at=int(index.offsets[0]) + 3))
    read_block([url], [index])
    assert proxy.counts.faults == 2


def test_extents_are_read_concurrently(long_shard, proxy):
    url, data = long_shard
    index = index_shard(url)
    proxy.slow_down(latency_s=0.05)
    extents = [Extent(int(offset), 1000, 4096 * number) for number, offset in enumerate(index.offsets)]
    into = memoryview(bytearray(4096 * len(extents)))
    assert ShardReader([url], [index]).read(0, extents, into) == 1000 * len(extents)
    for extent in extents:
        assert into[extent.block_offset : extent.block_offset + 1000] == data[extent.offset : extent.offset + 1000]
    assert proxy.counts.most_in_flight > 4


def test_a_shard_overwritten_after_indexing_is_an_error(long_shard, bucket):
    url, data = long_shard
    index = index_shard(url)
    bucket.put("long_shard.tar", data[:-1] + b"x")
    with pytest.raises(StorageError, match="has changed since it was indexed"):
        read_block([url], [index])


def test_indexing_a_sound_shard_logs_nothing(long_shard, caplog):
    caplog.set_level(logging.INFO)
    index_shard(long_shard[0])
    assert [record for record in caplog.records if record.name == "penstock"] == []

"""Checking and packing shards in a store: damaged bytes are read again, and unread bytes are not bad samples."""

import dataclasses

import deflate
import numpy as np
import pytest
from tests.support.proxy import Flip, Status

from penstock.errors import DecodeError, StorageError
from penstock.shards.check import CheckTask, ShardStructure, check_shards, run_check_task
from penstock.shards.codecs import zstd
from penstock.shards.index import encode_index, save_index
from penstock.shards.open_shard import open_shard
from penstock.shards.pack.options import PackOptions
from penstock.shards.pack.plan import make_plan
from penstock.shards.pack.sources import find_pack_sources, read_samples
from penstock.shards.pack.write import WORK_FOLDER, pack_shard
from penstock.shards.scan import index_shard, scan_shard
from penstock.storage.object_store import remote_file
from penstock.storage.object_store.retry import RetryPolicy
from penstock.testing import tar_bytes

PARTS = [(f"{number}.bin", bytes([number]) * 3000) for number in range(4)]
DATA = tar_bytes(PARTS)


@pytest.fixture
def shard(bucket):
    """The URL and the index of a shard whose index stores the CRC32 of every part."""
    bucket.put("a.tar", DATA)
    url = bucket.url("a.tar")
    index = index_shard(url)
    crcs = np.array([deflate.crc32(data) for _, data in PARTS], np.uint32)
    save_index(dataclasses.replace(index, crcs=crcs), url)
    return url, index_shard(url)


@pytest.fixture
def short_retries(monkeypatch):
    monkeypatch.setattr(
        remote_file, "DEFAULT_RETRY_POLICY", RetryPolicy(budget_s=0.02, first_pause_s=0.01, stall_s=0.4)
    )


def reads_shard(request):
    return request.path.endswith("a.tar")


def check(url, index):
    return run_check_task(CheckTask(url, tuple(map(index.sample, range(len(index)))), False, index.binding))


def test_check_ignores_a_transient_bit_flip_and_reports_a_lasting_one(shard, proxy):
    url, index = shard
    flip = Flip(at=int(index.offsets[2]) + 5)
    proxy.inject(flip, reads_shard, times=1)
    assert check(url, index) == []
    assert proxy.counts.faults == 1
    proxy.inject(flip, reads_shard)
    assert [(flaw.kind, flaw.member) for flaw in check(url, index)] == [("crc", "2.bin")]


def test_pack_skips_only_the_sample_with_a_lasting_bit_flip(shard, proxy):
    _, index = shard
    [source] = find_pack_sources(shard[0], PackOptions())
    flip = Flip(at=int(index.offsets[2]) + 5)
    proxy.inject(flip, reads_shard, times=1)
    assert [parts for _, parts in read_samples(source.select(range(4)))] == [[(".bin", data)] for _, data in PARTS]
    proxy.inject(flip, reads_shard)
    bad = [isinstance(parts, DecodeError) for _, parts in read_samples(source.select(range(4)))]
    assert bad == [False, False, True, False]


def test_an_unavailable_store_ends_a_pack_that_skips_bad_samples(shard, proxy, short_retries, tmp_path):
    options = PackOptions(on_bad="skip")
    [task] = make_plan(list(find_pack_sources(shard[0], options)), options).tasks()
    (tmp_path / WORK_FOLDER).mkdir()
    proxy.inject(Status(503), lambda request: request.method == "GET")
    with pytest.raises(StorageError, match="503 SlowDown"):
        pack_shard(task, tmp_path)
    assert not list(tmp_path.glob("*.tar"))
    proxy.remove_faults()
    assert pack_shard(task, tmp_path).samples == 4


def test_an_overwritten_shard_is_reported_as_changed(shard, bucket):
    url, index = shard
    bucket.put("a.tar", DATA[::-1])
    [flaw] = check(url, index)
    assert flaw.reason == "has changed since it was indexed"


def test_an_uploaded_index_is_accepted_and_its_checksums_are_used(bucket, tmp_path):
    """Its binding is the modification time of the packed file, not the ETag of the object."""
    path = tmp_path / "b.tar"
    path.write_bytes(DATA)
    crcs = np.array([deflate.crc32(data) for _, data in PARTS], np.uint32)
    crcs[3] += 1
    bucket.put("b.tar", DATA)
    bucket.put("b.tar.pidx", encode_index(dataclasses.replace(scan_shard(path), crcs=crcs)))
    events = list(check_shards([bucket.url("b.tar")], decode=False, workers=1))
    [structure] = [each for each in events if isinstance(each, ShardStructure)]
    assert (structure.flaws, structure.with_crc) == ((), True)
    [(_, flaws)] = [each for each in events if not isinstance(each, ShardStructure)]
    assert [(flaw.kind, flaw.member) for flaw in flaws] == [("crc", "3.bin")]


def test_an_overwritten_compressed_shard_is_reported_as_changed(bucket):
    bucket.put("c.tar.zst", zstd.compress(DATA))
    with open_shard(bucket.url("c.tar.zst")) as shard:
        bucket.put("c.tar.zst", zstd.compress(DATA[::-1]))
        with pytest.raises(StorageError, match="has changed since it was indexed"):
            shard.read_at(0, 512)

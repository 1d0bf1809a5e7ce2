import tarfile
from pathlib import Path

import pytest

from penstock.bench import workload as workload_module
from penstock.bench.fields import parse_field
from penstock.bench.loader_run import digest
from penstock.bench.workload import load_workload, make_workload
from penstock.errors import PairingError, SettingError
from penstock.shards.scan import index_shard
from penstock.testing import REID, SA1B, make_shards, sample_parts, tar_bytes

IMAGE = (parse_field("image=.jpg:32"),)


def keys_in(shards):
    return [key for shard in shards for key in index_shard(shard).keys]


@pytest.fixture
def shards(tmp_path):
    return [str(path) for path in make_shards(tmp_path / "shards", REID, samples=40, shards=4, scale=0.25)]


def test_small_shards_are_used_whole(shards, tmp_path):
    workload = make_workload(shards, IMAGE, 4, samples=1000, min_shards=2, folder=tmp_path)
    assert workload.shards == tuple(shards)
    assert not workload.copied
    assert (workload.samples, workload.keys_digest) == (40, digest(keys_in(shards)))


def test_no_more_shards_are_used_than_samples_and_workers_need(shards, tmp_path):
    assert make_workload(shards, IMAGE, 4, samples=20, min_shards=1, folder=tmp_path).shards == tuple(shards[:2])
    assert make_workload(shards, IMAGE, 4, samples=30, min_shards=3, folder=tmp_path).shards == tuple(shards[:3])


def test_shards_that_are_not_needed_are_not_opened(shards, tmp_path):
    Path(shards[3]).write_bytes(b"not a tar")
    assert make_workload(shards, IMAGE, 4, samples=30, min_shards=2, folder=tmp_path).samples == 30


def test_the_first_samples_of_large_shards_are_copied(shards, tmp_path):
    workload = make_workload(shards, IMAGE, 4, samples=12, min_shards=4, folder=tmp_path)
    assert workload.copied
    expected = [key for shard in shards for key in index_shard(shard).keys[:3]]
    assert (workload.samples, workload.keys_digest) == (12, digest(expected))
    assert keys_in(workload.shards) == expected


@pytest.mark.parametrize("compression", [None, "gz"])
def test_a_copy_keeps_members_their_order_and_compression(tmp_path, compression):
    (shard,) = make_shards(tmp_path, SA1B, samples=8, order="grouped", compression=compression, scale=0.05)
    workload = make_workload([str(shard)], IMAGE, 1, samples=2, min_shards=1, folder=tmp_path / ".")
    assert workload.shards[0].endswith(".tar.gz" if compression else ".tar")
    keys = ["sa_000001", "sa_000002"]
    names = [f"{key}{suffix}" for suffix in (".jpg", "_features.npz") for key in keys]
    with tarfile.open(workload.shards[0]) as copy, tarfile.open(shard) as whole:
        assert copy.getnames() == names
        assert [copy.extractfile(n).read() for n in names] == [whole.extractfile(n).read() for n in names]


def test_no_more_bytes_are_copied_than_allowed(shards, tmp_path, monkeypatch):
    index = index_shard(shards[0])
    per_shard = int(index.lengths.sum())
    monkeypatch.setattr(workload_module, "MAX_COPY_BYTES", 2 * per_shard)  # half of the four shards
    workload = make_workload(shards, IMAGE, 2, samples=31, min_shards=4, folder=tmp_path)
    assert 12 <= workload.samples < 31


def test_fewer_samples_than_two_batches_are_refused(shards, tmp_path):
    with pytest.raises(SettingError, match="40 samples do not make two batches of 21"):
        make_workload(shards, IMAGE, 21, samples=1000, min_shards=4, folder=tmp_path)


def test_a_sample_without_the_field_is_refused(tmp_path):
    jpeg = sample_parts(REID, 0, scale=0.25)[".jpg"]
    members = [("a.jpg", jpeg), ("b.jpg", jpeg), ("c.json", b"{}")]
    (tmp_path / "a.tar").write_bytes(tar_bytes(members))
    with pytest.raises(PairingError, match="has no"):
        make_workload([str(tmp_path / "a.tar")], IMAGE, 1, samples=10, min_shards=1, folder=tmp_path)


def test_zstd_shards_are_refused_because_the_plain_loader_cannot_read_them(tmp_path):
    (shard,) = make_shards(tmp_path, REID, samples=4, compression="zst", scale=0.25)
    with pytest.raises(SettingError, match="tarfile reads no zstd"):
        make_workload([str(shard)], IMAGE, 1, samples=10, min_shards=1, folder=tmp_path)


def test_a_workload_can_be_saved_and_loaded(shards, tmp_path):
    workload = make_workload(shards, IMAGE, 4, samples=1000, min_shards=4, folder=tmp_path)
    workload.save(tmp_path / "workload.json")
    assert load_workload(tmp_path / "workload.json") == workload

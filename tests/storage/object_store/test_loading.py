"""The loader returns the same batches over a store as over files."""

import pickle

import pytest
import torch
from tests.support.proxy import Cut, Flip, Status

import penstock
from penstock.datasets import ShardDataset
from penstock.errors import StorageError
from penstock.shards.index import save_index
from penstock.shards.scan import index_shard
from penstock.storage.object_store import remote_file
from penstock.storage.object_store.retry import RetryPolicy

SAMPLES = 40
FIELDS = {"image": penstock.Image(".jpg", size=32), "id": penstock.Label(".json", key="identity")}


def collect(batches):
    return [
        (batch["__key__"], {name: value for name, value in batch.items() if name != "__key__"}) for batch in batches
    ]


def assert_same(one, other):
    for (keys, values), (other_keys, other_values) in zip(one, other, strict=True):
        assert keys == other_keys
        for name, value in values.items():
            assert torch.equal(value, other_values[name]), name


@pytest.mark.parametrize("settings", [{}, {"shuffle": True, "seed": 3}, {"executor": "process"}], ids=str)
def test_batches_from_a_store_equal_batches_from_files(make_loader, local, remote, settings):
    assert_same(
        collect(make_loader(remote, FIELDS, **settings)),
        collect(make_loader([str(path) for path in local], FIELDS, **settings)),
    )


def test_a_glob_with_a_sampler_and_a_mixture_read_from_a_store(make_loader, local, remote, bucket):
    glob = bucket.url("reid/*.tar")
    assert_same(
        collect(make_loader(glob, FIELDS, sampler=[5, 3, 39, 0])),
        collect(make_loader([str(path) for path in local], FIELDS, sampler=[5, 3, 39, 0])),
    )
    mixed = make_loader({remote[0]: 1, bucket.url("reid/*-00000{1..3}.tar"): 3}, FIELDS)
    assert sum(len(batch["__key__"]) for batch in mixed) == SAMPLES


def test_a_checkpoint_of_files_resumes_over_the_store(make_loader, local, remote):
    first = make_loader([str(path) for path in local], FIELDS, shuffle=True, seed=5)
    batches = iter(first)
    next(batches)
    state = first.state_dict()
    rest = collect(batches)
    second = make_loader(remote, FIELDS, shuffle=True, seed=5)
    second.load_state_dict(state)
    assert_same(collect(second), rest)


def test_network_faults_do_not_change_the_batches(make_loader, local, remote, proxy, monkeypatch):
    monkeypatch.setattr(
        remote_file, "DEFAULT_RETRY_POLICY", RetryPolicy(first_pause_s=0.01, longest_pause_s=0.02, stall_s=1.0)
    )
    for fault in (Status(503), Cut(after_bytes=100), Status(500), Cut(after_bytes=None)):
        proxy.inject(fault, lambda request: request.attempt == 1 and request.number % 3 == 0, times=3)
    assert_same(collect(make_loader(remote, FIELDS)), collect(make_loader([str(path) for path in local], FIELDS)))
    assert proxy.counts.faults >= 4


def test_a_shard_overwritten_during_an_epoch_ends_the_epoch(make_loader, remote, local, bucket):
    loader = make_loader(remote, FIELDS, batch_size=2, num_readers=1)
    batches = iter(loader)
    next(batches)
    for path in local:
        data = path.read_bytes()
        bucket.put(f"reid/{path.name}", data[:-1] + b"x")
    with pytest.raises(StorageError, match="has changed since it was indexed"):
        list(batches)


def with_checksums(url):
    """Store the CRC32 of every part in a shard's index, as packing does; return the index."""
    import dataclasses

    import deflate
    import numpy as np

    from penstock.storage.object_store.remote_file import read_object

    index, data = index_shard(url), read_object(url, 1 << 30)
    parts = zip(index.offsets.tolist(), index.lengths.tolist(), strict=True)
    crcs = np.array([deflate.crc32(data[offset : offset + length]) for offset, length in parts], np.uint32)
    save_index(dataclasses.replace(index, crcs=crcs), url)
    return index


def test_only_a_lasting_bit_flip_loses_its_sample(make_loader, remote, proxy):
    index = with_checksums(remote[0])

    def reads_shard(request):
        return request.path.endswith(remote[0].rpartition("/")[2])

    proxy.inject(Flip(at=int(index.offsets[0]) + 5), reads_shard, times=1)
    assert (
        sum(len(batch["__key__"]) for batch in make_loader(remote, FIELDS, on_error="skip", max_bad_fraction=1))
        == SAMPLES
    )
    assert proxy.counts.faults == 1
    proxy.inject(Flip(at=int(index.offsets[int(index.starts[5])]) + 5), reads_shard)
    loader = make_loader(remote, FIELDS, on_error="skip", max_bad_fraction=1)
    assert sum(len(batch["__key__"]) for batch in loader) == SAMPLES - 1


def test_a_pickled_dataset_reads_the_same_and_contains_no_secrets(local, remote):
    dataset = ShardDataset(remote, FIELDS)
    sent = pickle.dumps(dataset)
    dataset_of_files = ShardDataset([str(path) for path in local], FIELDS)
    for number in (0, 7, SAMPLES - 1):
        assert dataset[number]["__key__"] == dataset_of_files[number]["__key__"]
        assert torch.equal(pickle.loads(sent)[number]["image"], dataset_of_files[number]["image"])
    assert b"not-to-be-seen-anywhere" not in sent


def test_the_loader_has_many_requests_in_flight(make_loader, remote, proxy):
    proxy.slow_down(latency_s=0.03)
    list(make_loader(remote, FIELDS, num_readers=16, shuffle=True))
    assert proxy.counts.most_in_flight > 4

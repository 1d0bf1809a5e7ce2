"""Shards in the order of a sampler: exactly its samples, with neighbours read together."""

import gzip
import threading

import numpy as np
import pytest
import torch
from tests.support.loader_helpers import keys_of
from torch.utils.data import BatchSampler, WeightedRandomSampler

import penstock
from penstock.data.read import page_cache_read, sampled_read
from penstock.datasets import ShardDataset
from penstock.errors import SettingError
from penstock.testing import REID, make_shards

SAMPLES = 48
FIELDS = {
    "image": penstock.Image(".jpg", size=(26, 13), fit="stretch", layout="HWC"),
    "id": penstock.Label(".json", key="identity"),
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("reid"), REID, samples=SAMPLES, shards=3, scale=0.1)


@pytest.fixture(params=["readers", "workers"])
def who_reads(request, monkeypatch):
    """Let workers read, as if all shards were in memory, or readers."""
    monkeypatch.setattr(page_cache_read, "is_in_memory", lambda _dataset: request.param == "workers")
    return request.param


@pytest.fixture
def loader(make_loader, shards, who_reads):
    return lambda batch_size=8, fields=FIELDS, **settings: make_loader(shards, fields, batch_size, **settings)


@pytest.fixture(scope="module")
def keys(shards):
    stream = penstock.Loader(shards, {"id": FIELDS["id"]}, 8, device="numpy")
    keys = keys_of(stream)
    stream.close()
    return keys


class Scattered:
    """A sampler with another order in each epoch, which repeats samples."""

    def __init__(self, count):
        self.count = count
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.count

    def __iter__(self):
        return iter(np.random.default_rng(self.epoch).integers(0, SAMPLES, self.count).tolist())


@pytest.mark.parametrize("executor", ["process", "thread"])
def test_batches_have_the_samples_of_the_sampler(loader, shards, keys, executor):
    sampler = Scattered(100)
    dataset = ShardDataset(shards, FIELDS)
    order = list(sampler)
    found = list(loader(sampler=sampler, executor=executor))
    assert [len(batch["__key__"]) for batch in found] == [8] * 12 + [4]
    assert keys_of(found) == [keys[number] for number in order]
    images = torch.cat([batch["image"] for batch in found])
    assert torch.equal(images, torch.stack([dataset[number]["image"] for number in order]))


def test_a_batch_sampler_decides_on_the_sizes_of_batches(loader, keys):
    batches = [[3], [40, 3, 3, 7], [], list(range(30)), [47, 0]]
    found = list(loader(None, batch_sampler=batches))
    assert [batch["__key__"] for batch in found if len(batch["__key__"])] == [
        [keys[number] for number in batch] for batch in batches if batch
    ]


def test_the_sampler_is_iterated_in_every_epoch_after_set_epoch(loader, keys):
    made = loader(sampler=Scattered(20))
    for epoch in range(3):
        wanted = np.random.default_rng(epoch).integers(0, SAMPLES, 20)
        assert keys_of(made) == [keys[number] for number in wanted]


@pytest.mark.parametrize("position", range(13))
def test_an_epoch_is_resumed_at_the_next_sample(loader, position):
    whole = keys_of(loader(sampler=Scattered(100)))
    first = loader(sampler=Scattered(100))
    iterator = iter(first)
    for _ in range(position):
        next(iterator)
    state = first.state_dict()
    iterator.close()
    second = loader(sampler=Scattered(100))
    second.load_state_dict(state)
    assert keys_of(second) == whole[8 * position :]


@pytest.mark.parametrize("who_reads", ["readers"], indirect=True)
def test_neighbours_are_read_together_and_other_samples_are_not_read(loader):
    neighbours = loader(None, batch_sampler=[list(range(15, 0, -1))], block_bytes=1 << 20)
    next(iter(neighbours))
    assert neighbours.stats().engine.reads == 1
    scattered = loader(None, fields={"image": penstock.Image(".jpg", size=8)}, batch_sampler=[[0], [47]])
    read = [scattered.stats().engine.bytes_read for _ in scattered]
    everything = loader(48)
    next(iter(everything))
    assert read[-1] < everything.stats().engine.bytes_read / 10


@pytest.mark.parametrize("who_reads", ["workers"], indirect=True)
def test_samples_in_memory_are_read_by_workers_and_counted(loader, keys):
    order = [17, 3, 3, 40]
    made = loader(None, fields={"id": FIELDS["id"]}, batch_sampler=[order, order])
    assert keys_of(made) == [keys[number] for number in order * 2]
    counts, engine = made._source.block_source.counts, made.stats().engine
    assert (counts.batches, counts.samples, counts.reads) == (2, 8, 8)
    assert engine.reads == 0
    assert counts.bytes_read == counts.bytes_wanted == engine.bytes_read > 0


def test_who_reads_may_change_from_epoch_to_epoch(loader, monkeypatch):
    made = loader(sampler=Scattered(100))
    first = keys_of(made)
    for in_memory in (True, False):
        monkeypatch.setattr(page_cache_read, "is_in_memory", lambda _dataset, in_memory=in_memory: in_memory)
        made.set_epoch(0)
        assert keys_of(made) == first


def test_a_repeated_sample_gets_new_random_numbers_which_are_the_same_in_every_run(loader):
    def noise(sample, rng):
        return {**sample, "id": np.int64(rng.integers(1 << 40))}

    runs = [
        torch.cat([batch["id"] for batch in loader(None, batch_sampler=[[5, 5], [5, 6]], transform=noise, **workers)])
        for workers in ({"executor": "thread", "num_workers": 1}, {"executor": "thread", "num_workers": 2})
    ]
    assert torch.equal(*runs)
    assert len(set(runs[0].tolist())) == 4


def test_an_iterator_that_is_still_alive_does_not_disturb_the_next_one(loader, keys):
    made = loader(sampler=Scattered(100))
    old = iter(made)
    next(old)
    wanted = np.random.default_rng(1).integers(0, SAMPLES, 100)
    assert keys_of(made) == [keys[number] for number in wanted]


def test_batches_of_an_earlier_epoch_are_forgotten(loader):
    made = loader(sampler=Scattered(100))
    for _ in range(3):
        keys_of(made)
    block_source = made._source.block_source
    assert (block_source.undelivered_batches, block_source._not_laid_out) == (0, {})
    assert len(block_source._batches_kept) <= 13  # of this epoch, those that were laid out before the others
    assert len(block_source._places) <= 100


def test_delivered_batches_are_forgotten_while_others_are_laid_out(loader):
    made = loader(1, sampler=Scattered(400))
    kept = [len(made._source.block_source._places) for _ in made]
    assert max(kept) < 200


def test_the_reads_of_a_batch_are_planned_in_the_schedulers_thread(loader, monkeypatch):
    threads = set()
    real = sampled_read.SampledBlockSource._lay_out

    def lay_out(*arguments):
        threads.add(threading.current_thread().name)
        return real(*arguments)

    monkeypatch.setattr(sampled_read.SampledBlockSource, "_lay_out", lay_out)
    assert len(keys_of(loader(sampler=Scattered(100)))) == 100
    assert threads == {"penstock-scheduler"}


def test_torch_samplers_are_accepted(loader, keys):
    sampler = BatchSampler(WeightedRandomSampler([1.0] * 10 + [0.0] * 38, 40), 5, drop_last=False)
    assert set(keys_of(loader(None, batch_sampler=sampler))) <= set(keys[:10])


def test_bad_samples_are_left_out_with_their_names(make_loader, tmp_path):
    [shard] = make_shards(tmp_path, REID, samples=8, shards=1, scale=0.1)
    fields = {"image": FIELDS["image"]}
    whole = make_loader([shard], fields, 8)
    _, key, offset = whole._source.location(3, ".jpg")
    data = bytearray(shard.read_bytes())
    data[offset : offset + 2] = b"no"
    shard.write_bytes(data)
    made = make_loader([shard], fields, None, batch_sampler=[[2, 3, 4]], on_error="skip")
    assert len(keys_of(made)) == 2
    with pytest.raises(penstock.errors.PenstockError, match=key):
        list(make_loader([shard], fields, None, batch_sampler=[[2, 3, 4]]))


@pytest.mark.parametrize("wrong", [-1, SAMPLES])
def test_an_index_that_does_not_exist_is_refused(loader, wrong):
    with pytest.raises(SettingError, match=f"gave {wrong}, and there are {SAMPLES} samples"):
        list(loader(sampler=[0, wrong]))


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"shuffle": True}, "shuffle"),
        ({"max_samples": 5}, "max_samples"),
        ({"rank": 0, "world_size": 2}, "rank"),
    ],
)
def test_settings_that_contradict_a_sampler_are_refused(loader, settings, name):
    with pytest.raises(SettingError, match=name):
        loader(sampler=[1, 2], **settings)


def test_a_compressed_shard_is_refused_with_advice(make_loader, tmp_path, shards):
    packed = tmp_path / "a.tar.gz"
    packed.write_bytes(gzip.compress(shards[0].read_bytes()))
    with pytest.raises(SettingError, match=r"compressed shard.*shards pack"):
        make_loader([packed], FIELDS, 8, sampler=[1])


def test_weights_are_refused(make_loader, shards):
    with pytest.raises(SettingError, match="weights"):
        make_loader({str(shards[0]): 1, str(shards[1]): 2}, FIELDS, 8, sampler=[1])


@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
def test_an_empty_batch_of_a_batch_sampler_is_delivered_empty(make_loader, shards, on_error):
    loader = make_loader(shards, FIELDS, None, batch_sampler=[[0, 1], [], [2, 3]], on_error=on_error)
    assert [len(batch["id"]) for batch in loader] == [2, 0, 2]

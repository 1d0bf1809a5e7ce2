"""Shards in the order of a sampler: the very samples it asks for, read together where they lie together."""

import gzip
import threading

import numpy as np
import pytest
import torch
from tests.support.loader_helpers import keys_of
from torch.utils.data import BatchSampler, WeightedRandomSampler

import penstock
from penstock.data.read import page_cache_read as straight
from penstock.data.read import sampled_read as picked
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
    """Workers, where all is in memory; else it is fetched for them."""
    monkeypatch.setattr(straight, "is_in_memory", lambda _dataset: request.param == "workers")
    return request.param


@pytest.fixture
def loader(make_loader, shards, who_reads):
    return lambda batch_size=8, fields=FIELDS, **settings: make_loader(shards, fields, batch_size, **settings)


@pytest.fixture(scope="module")
def keys(shards):
    stream = penstock.Loader(shards, {"id": FIELDS["id"]}, 8, device="numpy")
    found = keys_of(stream)
    stream.close()
    return found


class Scattered:
    """Another order each epoch, with samples that come again."""

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
def test_batches_are_what_the_sampler_asks_for(loader, shards, keys, executor):
    sampler = Scattered(100)
    dataset = ShardDataset(shards, FIELDS)
    order = list(sampler)
    found = list(loader(sampler=sampler, executor=executor))
    assert [len(batch["__key__"]) for batch in found] == [8] * 12 + [4]
    assert keys_of(found) == [keys[number] for number in order]
    images = torch.cat([batch["image"] for batch in found])
    assert torch.equal(images, torch.stack([dataset[number]["image"] for number in order]))


def test_a_batch_sampler_decides_how_large_batches_are(loader, keys):
    batches = [[3], [40, 3, 3, 7], [], list(range(30)), [47, 0]]
    found = list(loader(None, batch_sampler=batches))
    assert [batch["__key__"] for batch in found if len(batch["__key__"])] == [
        [keys[number] for number in batch] for batch in batches if batch
    ]


def test_every_epoch_asks_the_sampler_again_and_tells_it_which(loader, keys):
    made = loader(sampler=Scattered(20))
    for epoch in range(3):
        wanted = np.random.default_rng(epoch).integers(0, SAMPLES, 20)
        assert keys_of(made) == [keys[number] for number in wanted]


@pytest.mark.parametrize("position", range(13))
def test_a_pass_is_resumed_with_the_very_next_sample(loader, position):
    whole = keys_of(loader(sampler=Scattered(100)))
    first = loader(sampler=Scattered(100))
    passing = iter(first)
    for _ in range(position):
        next(passing)
    state = first.state_dict()
    passing.close()
    second = loader(sampler=Scattered(100))
    second.load_state_dict(state)
    assert keys_of(second) == whole[8 * position :]


@pytest.mark.parametrize("who_reads", ["readers"], indirect=True)
def test_neighbours_are_read_together_and_others_are_not_read(loader):
    neighbours = loader(None, batch_sampler=[list(range(15, 0, -1))], block_bytes=1 << 20)
    next(iter(neighbours))
    assert neighbours.stats().engine.reads == 1
    scattered = loader(None, fields={"image": penstock.Image(".jpg", size=8)}, batch_sampler=[[0], [47]])
    read = [scattered.stats().engine.bytes_read for _ in scattered]
    everything = loader(48)
    next(iter(everything))
    assert read[-1] < everything.stats().engine.bytes_read / 10


@pytest.mark.parametrize("who_reads", ["workers"], indirect=True)
def test_what_is_in_memory_is_read_by_workers_and_counted(loader, keys):
    order = [17, 3, 3, 40]
    made = loader(None, fields={"id": FIELDS["id"]}, batch_sampler=[order, order])
    assert keys_of(made) == [keys[number] for number in order * 2]
    counted, engine = made._source.block_source.counts, made.stats().engine
    assert (counted.batches, counted.samples, counted.reads) == (2, 8, 8)
    assert engine.reads == 0
    assert counted.bytes_read == counted.bytes_wanted == engine.bytes_read > 0


def test_who_reads_may_change_from_one_pass_to_the_next(loader, monkeypatch):
    made = loader(sampler=Scattered(100))
    first = keys_of(made)
    for in_memory in (True, False):
        monkeypatch.setattr(straight, "is_in_memory", lambda _dataset, answer=in_memory: answer)
        made.set_epoch(0)
        assert keys_of(made) == first


def test_a_sample_that_comes_again_has_other_dice_and_every_run_has_the_same(loader):
    def noise(sample, rng):
        return {**sample, "id": np.int64(rng.integers(1 << 40))}

    runs = [
        torch.cat([batch["id"] for batch in loader(None, batch_sampler=[[5, 5], [5, 6]], transform=noise, **how)])
        for how in ({"executor": "thread", "num_workers": 1}, {"executor": "thread", "num_workers": 2})
    ]
    assert torch.equal(*runs)
    assert len(set(runs[0].tolist())) == 4


def test_two_passes_at_a_time_do_not_disturb_the_new_one(loader, keys):
    made = loader(sampler=Scattered(100))
    old = iter(made)
    next(old)
    wanted = np.random.default_rng(1).integers(0, SAMPLES, 100)
    assert keys_of(made) == [keys[number] for number in wanted]


def test_nothing_is_kept_of_batches_of_an_earlier_pass(loader):
    made = loader(sampler=Scattered(100))
    for _ in range(3):
        keys_of(made)
    block_source = made._source.block_source
    assert (block_source.undelivered_batches, block_source._not_laid_out) == (0, {})
    assert len(block_source._batches_kept) <= 13  # of this pass, those that the others were laid out before
    assert len(block_source._places) <= 100


def test_nothing_is_kept_of_batches_that_were_delivered_while_others_are_laid_out(loader):
    made = loader(1, sampler=Scattered(400))
    kept = [len(made._source.block_source._places) for _ in made]
    assert max(kept) < 200


def test_how_a_batch_is_read_is_not_worked_out_in_the_training_loop(loader, monkeypatch):
    threads = set()
    real = picked.SampledBlockSource._lay_out

    def lay_out(*given):
        threads.add(threading.current_thread().name)
        return real(*given)

    monkeypatch.setattr(picked.SampledBlockSource, "_lay_out", lay_out)
    assert len(keys_of(loader(sampler=Scattered(100)))) == 100
    assert threads == {"penstock-scheduler"}


def test_torch_samplers_work(loader, keys):
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
    ("settings", "what"),
    [
        ({"shuffle": True}, "shuffle"),
        ({"max_samples": 5}, "max_samples"),
        ({"rank": 0, "world_size": 2}, "rank"),
        ({"collate_fn": list}, "collate_fn"),
    ],
)
def test_what_a_sampler_decides_cannot_be_asked_for_as_well(loader, settings, what):
    with pytest.raises(SettingError, match=what):
        loader(sampler=[1, 2], **settings)


def test_a_compressed_shard_is_refused_with_the_way_out(make_loader, tmp_path, shards):
    packed = tmp_path / "a.tar.gz"
    packed.write_bytes(gzip.compress(shards[0].read_bytes()))
    with pytest.raises(SettingError, match=r"compressed shard.*shards pack"):
        make_loader([packed], FIELDS, 8, sampler=[1])


def test_weights_are_refused(make_loader, shards):
    with pytest.raises(SettingError, match="weights"):
        make_loader({str(shards[0]): 1, str(shards[1]): 2}, FIELDS, 8, sampler=[1])

"""The attributes of torch's DataLoader that frameworks read."""

import pytest
from tests.support.loader_helpers import keys_of
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

import penstock
from penstock.core.cores import usable_cores
from penstock.errors import SettingError
from penstock.testing import REID, make_shards

SAMPLES = 30
FIELDS = {"id": penstock.Label(".json", key="identity")}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("reid"), REID, samples=SAMPLES, shards=3, scale=0.05)


@pytest.fixture
def loader(make_loader, shards):
    return lambda batch_size=8, **settings: make_loader(shards, FIELDS, batch_size, **settings)


@pytest.fixture(scope="module")
def numbers(shards):
    """Return the number of each sample, by its key."""
    plain = penstock.Loader(shards, FIELDS, SAMPLES, engine=penstock.EngineOptions(executor="thread"))
    by_key = {key: number for number, key in enumerate(keys_of(plain))}
    plain.close()
    return by_key


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (1, 2), (3, 4)])
def test_samplers_have_the_order_that_the_loader_delivers(loader, numbers, drop_last, rank, world_size):
    ranked = loader(4, shuffle=True, drop_last=drop_last, rank=rank, world_size=world_size)
    for epoch in (0, 1):
        ranked.set_epoch(epoch)
        batches, flat = list(ranked.batch_sampler), list(ranked.sampler)
        assert len(batches) == len(ranked.batch_sampler) == len(ranked)
        assert len(flat) == len(ranked.sampler)
        assert flat == [number for batch in batches for number in batch]
        assert batches == [[numbers[key] for key in batch["__key__"]] for batch in ranked]


def test_the_class_of_a_sampler_shows_whether_samples_are_shuffled(loader):
    assert isinstance(loader().sampler, SequentialSampler)
    assert not isinstance(loader(shuffle=True).sampler, SequentialSampler | RandomSampler)


def test_a_batch_sampler_has_batch_size_and_drop_last(loader):
    sampler = loader(drop_last=True).batch_sampler
    assert (sampler.batch_size, sampler.drop_last) == (8, True)


@pytest.mark.parametrize(
    "attribute",
    [lambda loader: loader, lambda loader: loader.sampler, lambda loader: loader.batch_sampler.sampler],
    ids=["loader", "sampler", "batch_sampler.sampler"],
)
def test_an_epoch_can_be_set_on_every_attribute_that_frameworks_use(loader, attribute):
    reference, chosen = loader(shuffle=True), loader(shuffle=True)
    epochs = [keys_of(reference) for _ in range(3)]
    for epoch in (2, 0):
        attribute(chosen).set_epoch(epoch)
        chosen.sampler.set_epoch(epoch)
        iterator = iter(chosen)
        attribute(chosen).set_epoch(epoch)  # Lightning makes the iterator before
        assert keys_of(iterator) == epochs[epoch]


def test_an_epoch_set_while_an_iterator_is_still_alive_is_the_next_one(loader):
    reference, chosen = loader(shuffle=True), loader(shuffle=True)
    epochs = [keys_of(reference) for _ in range(5)]
    held = iter(chosen)
    next(held)
    chosen.set_epoch(3)
    assert [keys_of(chosen), keys_of(chosen)] == epochs[3:5]
    held.close()


def test_an_epoch_set_between_iter_and_the_first_batch_counts_while_an_iterator_is_alive(loader):
    chosen = loader(shuffle=True)
    first = next(held := iter(chosen))["__key__"]
    again = iter(chosen)
    chosen.set_epoch(0)
    keys = keys_of(again)
    assert (keys[:8], chosen.epoch) == (first, 1)
    held.close()


def test_an_iterator_closed_at_the_last_batch_leaves_the_workers_running(loader):
    """Frameworks count the batches, and do not request one more."""
    counted = loader(shuffle=True)
    for _ in range(2):
        iterator = iter(counted)
        keys = keys_of(next(iterator) for _ in range(len(counted)))
        engine = counted._engine
        iterator.close()
        assert len(set(keys)) == SAMPLES
        assert counted._engine is engine is not None
    assert counted.state_dict()["epoch"] == 1


def test_the_datasets_length_is_the_number_of_samples_over_all_ranks(loader):
    assert len(loader().dataset) == SAMPLES
    assert len(loader(rank=1, world_size=2).dataset) == SAMPLES
    assert len(loader(max_samples=7).dataset) == 7


def test_reading_the_dataset_directly_is_an_error_that_says_how_to_resume(loader):
    ours = loader()
    direct = DataLoader(ours.dataset, batch_sampler=ours.batch_sampler)
    with pytest.raises(SettingError, match="ignore_data_skip"):
        next(iter(direct))
    with pytest.raises(TypeError, match="not iterable"):
        iter(ours.dataset)


def test_num_workers_is_the_number_of_workers(loader):
    fixed = loader(num_workers=3)
    assert fixed.num_workers == 3
    next(iterator := iter(fixed))
    assert fixed.num_workers == 3
    iterator.close()
    assert loader(num_workers=None).num_workers == usable_cores()

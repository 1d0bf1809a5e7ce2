"""The loader where a DataLoader is expected."""

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
    """From a sample's key to its number."""
    plain = penstock.Loader(shards, FIELDS, SAMPLES, engine=penstock.EngineOptions(executor="thread"))
    found = {key: number for number, key in enumerate(keys_of(plain))}
    plain.close()
    return found


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (1, 2), (3, 4)])
def test_samplers_say_what_the_loader_delivers(loader, numbers, drop_last, rank, world_size):
    asked = {"batch_size": 4, "shuffle": True, "drop_last": drop_last, "rank": rank, "world_size": world_size}
    told = loader(**asked)
    for epoch in (0, 1):
        told.set_epoch(epoch)
        said, flat = list(told.batch_sampler), list(told.sampler)
        assert len(said) == len(told.batch_sampler) == len(told)
        assert len(flat) == len(told.sampler)
        assert flat == [number for batch in said for number in batch]
        assert said == [[numbers[key] for key in batch["__key__"]] for batch in told]


def test_a_sampler_tells_whether_samples_are_shuffled(loader):
    assert isinstance(loader().sampler, SequentialSampler)
    assert not isinstance(loader(shuffle=True).sampler, SequentialSampler | RandomSampler)


def test_batch_size_and_drop_last_are_found_at_the_batch_sampler_too(loader):
    sampler = loader(drop_last=True).batch_sampler
    assert (sampler.batch_size, sampler.drop_last) == (8, True)


@pytest.mark.parametrize(
    "place",
    [lambda it: it, lambda it: it.sampler, lambda it: it.batch_sampler.sampler],
    ids=["itself", "sampler", "deep"],
)
def test_an_epoch_can_be_set_wherever_frameworks_do_it(loader, place):
    passed, chosen = loader(shuffle=True), loader(shuffle=True)
    epochs = [keys_of(passed) for _ in range(3)]
    for epoch in (2, 0):
        place(chosen).set_epoch(epoch)
        chosen.sampler.set_epoch(epoch)
        passing = iter(chosen)
        place(chosen).set_epoch(epoch)  # Lightning makes the iterator first
        assert keys_of(passing) == epochs[epoch]


def test_an_epoch_set_while_the_last_pass_is_still_held_is_the_next_one_and_only_that(loader):
    passed, chosen = loader(shuffle=True), loader(shuffle=True)
    epochs = [keys_of(passed) for _ in range(5)]
    held = iter(chosen)
    next(held)
    chosen.set_epoch(3)
    assert [keys_of(chosen), keys_of(chosen)] == epochs[3:5]
    held.close()


def test_an_epoch_set_between_iter_and_the_first_batch_counts_even_if_a_pass_is_still_held(loader):
    chosen = loader(shuffle=True)
    first = next(held := iter(chosen))["__key__"]
    again = iter(chosen)
    chosen.set_epoch(0)
    keys = keys_of(again)
    assert (keys[:8], chosen.epoch) == (first, 1)
    held.close()


def test_a_pass_whose_last_batch_was_taken_leaves_the_workers_running(loader):
    """Frameworks count the batches, and never ask for one more."""
    counted = loader(shuffle=True)
    for _ in range(2):
        passing = iter(counted)
        keys = keys_of(next(passing) for _ in range(len(counted)))
        engine = counted._engine
        passing.close()
        assert len(set(keys)) == SAMPLES
        assert counted._engine is engine is not None
    assert counted.state_dict()["epoch"] == 1


def test_the_datasets_length_is_the_number_of_samples_over_all_ranks(loader):
    assert len(loader().dataset) == SAMPLES
    assert len(loader(rank=1, world_size=2).dataset) == SAMPLES
    assert len(loader(max_samples=7).dataset) == 7


def test_a_framework_that_reads_the_dataset_by_itself_is_told_how_to_resume(loader):
    ours = loader()
    taken_apart = DataLoader(ours.dataset, batch_sampler=ours.batch_sampler)
    with pytest.raises(SettingError, match="ignore_data_skip"):
        next(iter(taken_apart))
    with pytest.raises(TypeError, match="not iterable"):
        iter(ours.dataset)


def test_num_workers_is_how_many_decode(loader):
    told = loader(num_workers=3)
    assert told.num_workers == 3
    next(passing := iter(told))
    assert told.num_workers == 3
    passing.close()
    assert loader(num_workers=None).num_workers == usable_cores()

"""A map-style dataset on the engine: batches as a DataLoader makes them, spread over all workers sample by sample."""

import itertools
import json
import os
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, TensorDataset

from penstock.errors import PenstockError, SettingError, WorkerCrash

LENGTH = 30


@pytest.fixture
def loader(dataset_loader):
    return dataset_loader


def labels(batches):
    return [batch["label"][0].tolist() for batch in batches]


def plain(value):
    """Return a batch as plain values and their types."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.tolist()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return (type(value), [plain(each) for each in value]) if isinstance(value, list | tuple) else value


# -- content of batches ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_batches_are_equal_to_those_of_a_dataloader(loader, data, executor):
    ours = loader(data.Images(), executor=executor, batch_size=7)
    theirs = DataLoader(data.Images(), batch_size=7)
    assert [plain(batch) for batch in ours] == [plain(batch) for batch in theirs]
    assert len(ours) == len(theirs) == 5


def test_tensors_of_a_tensor_dataset_are_delivered_by_processes(loader):
    tensors = TensorDataset(torch.arange(20.0).reshape(10, 2), torch.arange(10).to(torch.bfloat16))
    ours, theirs = loader(tensors, executor="process"), DataLoader(tensors, batch_size=4)
    assert [plain(batch) for batch in ours] == [plain(batch) for batch in theirs]


def test_tensors_use_the_memory_of_the_slab(loader, data):
    direct = loader(data.Images())
    batch = next(iterator := iter(direct))
    slabs = np.frombuffer(direct._engine.slabs.view, np.uint8)
    assert np.shares_memory(batch["image"].numpy(), slabs)
    del slabs
    iterator.close()


def test_all_batches_can_be_kept_and_stay_unchanged(loader, data):
    kept = list(loader(data.Images(), batch_size=1))
    assert [batch["image"][0, 0, 0].item() for batch in kept] == list(range(LENGTH))


def test_device_numpy_delivers_arrays(loader, data):
    batch = next(iter(loader(data.Images(), device="numpy")))
    assert type(batch["image"]) is np.ndarray
    assert batch["label"][0].tolist() == [0, 1, 2, 3]


def test_bfloat16_is_refused_for_numpy(loader):
    with pytest.raises(SettingError, match="bfloat16, a type that numpy does not have"):
        next(iter(loader(TensorDataset(torch.zeros(4, dtype=torch.bfloat16)), device="numpy")))


def test_workers_do_not_import_torch_unless_the_dataset_does(loader, data):
    batches = list(loader(data.Modules(), executor="process"))
    assert not any(batch["torch"].any() for batch in batches)
    assert all(os.getpid() not in batch["pid"] for batch in batches)


def test_the_samples_of_a_batch_are_spread_over_the_workers(loader):
    barrier = threading.Barrier(2, timeout=30)

    class WaitingDataset:
        def __len__(self):
            return LENGTH

        def __getitem__(self, index):
            if index in (1, LENGTH - 1):  # the very first one is read for the layout
                barrier.wait()  # in a single worker, the first one would wait in vain
            return index

    (batch,) = loader(WaitingDataset(), batch_size=LENGTH, num_workers=2)
    assert batch.tolist() == list(range(LENGTH))


@pytest.mark.parametrize("workers", [1, 3])
def test_random_numbers_inside_a_dataset_depend_on_the_sample_and_not_on_the_worker(loader, data, workers):
    def random_batches(workers):
        return [plain(batch) for batch in loader(data.Random(), executor="process", num_workers=workers, shuffle=True)]

    batches = random_batches(workers)
    assert batches == random_batches(2)
    first = list(itertools.chain(*(batch[1][1][1] for batch in batches)))
    assert len(set(first)) == LENGTH


def test_a_transform_is_applied_to_the_samples_of_a_dataset(loader, data):
    def pixels(**settings):
        return {
            int(label): image[0, 0].item()
            for batch in loader(data.Images(), transform=data.jitter, **settings)
            for label, image in zip(batch["label"], batch["image"], strict=True)
        }

    alone = pixels(num_workers=1)
    assert alone == pixels(num_workers=2, executor="process", shuffle=True)
    assert all(label <= value < label + 1 for label, value in alone.items())
    assert alone != pixels(seed=1)


def test_a_list_is_a_dataset(loader):
    assert [batch.tolist() for batch in loader([5, 6, 7, 8, 9])] == [[5, 6, 7, 8], [9]]


# -- order -----------------------------------------------------------------------------------------------------


def test_shuffle_gives_a_new_order_each_epoch_and_the_same_for_the_same_seed(loader, data):
    one, two = (loader(data.Images(), shuffle=True, seed=3) for _ in range(2))
    first, second = labels(one), labels(one)
    assert first != second
    assert sorted(itertools.chain(*first)) == list(range(LENGTH))
    two.set_epoch(1)
    assert labels(two) == second


def test_ranks_share_the_samples(loader, data):
    shares = [labels(loader(data.Images(), shuffle=True, rank=rank, world_size=3)) for rank in range(3)]
    assert sorted(itertools.chain(*itertools.chain(*shares))) == list(range(LENGTH))
    assert {len(share) for share in shares} == {3}


def test_max_samples_ends_the_epoch_early(loader, data):
    short = loader(data.Images(), max_samples=6)
    assert (labels(short), len(short)) == ([[0, 1, 2, 3], [4, 5]], 2)


def test_a_sampler_is_iterated_in_every_epoch(loader, data):
    sampled = loader(data.Images(), sampler=[9, 3, 5, 7, 1], drop_last=True)
    assert [labels(sampled), labels(sampled), len(sampled)] == [[[9, 3, 5, 7]], [[9, 3, 5, 7]], 1]


def test_a_distributed_sampler_gets_the_epoch_and_is_not_divided_again(loader, data):
    dataset = data.Images()
    share = loader(dataset, sampler=DistributedSampler(dataset, 3, 1, shuffle=True))
    theirs = DistributedSampler(dataset, 3, 1, shuffle=True)
    for epoch in range(2):
        theirs.set_epoch(epoch)
        assert list(itertools.chain(*labels(share))) == list(theirs)


def test_a_batch_sampler_decides_on_the_sizes_of_batches(loader, data):
    sizes = loader(data.Images(), batch_sampler=[[1, 2], [3], [9, 8, 7, 6, 5, 4]])
    assert labels(sizes) == [[1, 2], [3], [9, 8, 7, 6, 5, 4]]
    assert (len(sizes), sizes.batch_size) == (3, None)


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_batch_that_is_larger_than_expected_gets_larger_slabs(loader, data, executor):
    growing = [[number % LENGTH] for number in range(80)] + [list(range(20)), [7], list(range(LENGTH))]
    grown = loader(data.Images(), batch_sampler=growing, executor=executor)
    assert labels(grown) == growing
    assert labels(grown) == growing


def test_a_first_batch_without_samples_is_refused_with_the_reason(loader, data):
    with pytest.raises(SettingError, match="the first batch is empty"):
        list(loader(data.Images(), batch_sampler=[[], [1, 2]]))


def test_an_endless_batch_sampler_is_iterated_step_by_step(loader, data):
    class Endless:
        def __iter__(self):
            return ([number % LENGTH, (number + 1) % LENGTH] for number in itertools.count())

    endless = loader(data.Images(), batch_sampler=Endless())
    found = [batch["label"][0].tolist() for batch in itertools.islice(endless, 200)]
    assert found == [[number % LENGTH, (number + 1) % LENGTH] for number in range(200)]
    with pytest.raises(TypeError):
        len(endless)


def test_an_error_of_the_sampler_ends_the_epoch(loader, data):
    def indices():
        yield from range(5)
        raise LookupError("no more")

    class Failing:
        def __iter__(self):
            return indices()

    with pytest.raises(LookupError, match="no more"):
        labels(loader(data.Images(), sampler=Failing()))


# -- resuming --------------------------------------------------------------------------------------------------

ORDERS = {
    "own": lambda: {"shuffle": True, "batch_size": 4},
    "sampler": lambda: {"sampler": DistributedSampler(range(LENGTH), 2, 0, seed=5), "batch_size": 4},
    "batch_sampler": lambda: {"batch_sampler": [[1, 2], [3], [9, 8, 7], [4, 5]]},
}


@pytest.mark.parametrize("order", ORDERS)
def test_an_epoch_is_resumed_at_the_next_sample_after_any_batch(loader, data, order):
    whole = loader(data.Images(), **ORDERS[order]())
    labels(whole)
    states, expected = [], []
    for batch in whole:
        expected.append(batch["label"][0].tolist())
        states.append(json.loads(json.dumps(whole.state_dict())))
    for number, state in enumerate(states, 1):
        resumed = loader(data.Images(), **ORDERS[order]())
        resumed.load_state_dict(state)
        assert labels(resumed) == expected[number:]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": 1}, "seed 0, this loader has 1"),
        ({"shuffle": False}, "shuffle True, this loader has False"),
        ({"max_samples": 7}, "samples 30, this loader has 7"),
    ],
)
def test_a_state_of_another_order_is_refused(loader, data, changed, message):
    state = loader(data.Images(), shuffle=True).state_dict()
    with pytest.raises(SettingError, match=message):
        loader(data.Images(), **{"shuffle": True, **changed}).load_state_dict(state)


def test_a_state_of_a_dataset_of_another_length_is_refused(loader, data):
    state = loader(data.Images()).state_dict()
    with pytest.raises(SettingError, match="length 30, this loader has 31"):
        loader(data.Images(31)).load_state_dict(state)


def test_a_state_of_a_sampler_for_other_ranks_is_refused(loader, data):
    begun = loader(data.Images(), sampler=DistributedSampler(range(LENGTH), 2, 0))
    next(iter(begun))
    resumed = loader(data.Images(), sampler=DistributedSampler(range(LENGTH), 3, 0))
    resumed.load_state_dict(begun.state_dict())
    with pytest.raises(SettingError, match="a sampler of length 15, and this one has length 10"):
        list(resumed)


# -- collate_fn ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_each_batch_of_a_collate_fn_is_made_in_one_worker(loader, data, executor):
    batches = list(loader(data.Images(), collate_fn=data.names, executor=executor, batch_size=8))
    assert [batch["names"] for batch in batches] == [
        [f"name {index}" for index in range(start, min(start + 8, LENGTH))] for start in range(0, LENGTH, 8)
    ]


def test_several_batches_of_a_collate_fn_are_made_at_a_time(loader, data):
    barrier = threading.Barrier(2, timeout=30)

    def wait_and_count(batch):
        barrier.wait()
        return len(batch)

    assert list(loader(data.Images(), collate_fn=wait_and_count, batch_size=15, num_workers=2)) == [15, 15]


def test_a_batch_that_kills_its_worker_twice_is_named_as_a_whole(loader, data):
    deadly = loader(data.Images(killers=[9]), collate_fn=data.names, executor="process")
    with pytest.raises(WorkerCrash, match="this batch kills the worker") as caught:
        list(deadly)
    assert (caught.value.shard, caught.value.member) == ("Images", "8")


def test_collate_fn_gets_a_batch_without_its_bad_samples(loader, data):
    skipping = loader(data.Images(bad=[8, 9]), collate_fn=data.names, on_error="skip")
    assert list(skipping)[2]["names"] == ["name 10", "name 11"]


# -- settings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fields": {}}, "fields are for shards"),
        ({"lanes": 32}, "lanes is for shards"),
        ({"num_readers": 2}, "num_readers is for shards"),
        ({"batch_size": None}, "batch_size is missing"),
        ({"sampler": [1], "shuffle": True}, "shuffle cannot be used with a sampler"),
        ({"sampler": [1], "max_samples": 1}, "max_samples cannot be used with a sampler"),
        ({"sampler": [1], "rank": 0, "world_size": 1}, "rank and world_size cannot be used with a sampler"),
        ({"batch_sampler": [[1]], "batch_size": 4}, "batch_size cannot be used with a batch_sampler"),
        ({"batch_sampler": [[1]], "drop_last": True}, "drop_last cannot be used with a batch_sampler"),
        ({"batch_sampler": [[1]], "sampler": [1]}, "sampler cannot be used with a batch_sampler"),
        ({"collate_fn": list, "device": "meta"}, "delivered unchanged"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(loader, data, settings, message):
    with pytest.raises(SettingError, match=message):
        loader(data.Images(), **settings)


def test_dataset_and_samplers_are_those_of_the_user(loader, data):
    dataset = data.Images()
    sampler = RandomSampler(dataset)
    batch_sampler = BatchSampler(sampler, 3, False)
    ours = loader(dataset, batch_sampler=batch_sampler)
    assert (ours.dataset, ours.sampler, ours.batch_sampler) == (dataset, sampler, batch_sampler)
    assert repr(ours).startswith("<Loader: Images of 30, batches of a batch_sampler; epoch 0")
    plain_order = loader(dataset, shuffle=True)
    assert sorted(plain_order.sampler) == list(range(LENGTH))
    assert len(plain_order.batch_sampler) == len(plain_order)


def test_an_empty_dataset_has_no_batches(loader):
    empty = loader(TensorDataset(torch.zeros(0)))
    assert (list(empty), len(empty), empty.epoch) == ([], 0, 1)


def test_a_second_iteration_ends_the_first_one(loader, data):
    both = loader(data.Images())
    first = iter(both)
    next(first)
    assert len(list(both)) == 8
    with pytest.raises(PenstockError):
        next(first)

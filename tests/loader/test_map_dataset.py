"""Any map-style dataset on the engine: what a DataLoader would deliver, spread over all workers sample by sample."""

import itertools
import json
import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
import torch
from tests.support.loader_helpers import loader_settings
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, TensorDataset

import penstock
from penstock.errors import PenstockError, SampleError, SettingError, WorkerCrash

LENGTH = 30

DATASETS = """
import os, random, sys
import numpy as np

class Pictures:
    # Nested samples, made without torch.
    def __init__(self, length=30, bad=(), killers=()):
        self.length, self.bad, self.killers = length, bad, killers

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index in self.bad:
            raise ValueError(f"no picture {index}")
        if index in self.killers:
            os._exit(3)
        picture = np.full((3, 4), index, np.float32)
        return {"picture": picture, "label": (index, f"name {index}"), "share": index / 7}

class Modules(Pictures):
    def __getitem__(self, index):
        return {"torch": "torch" in sys.modules, "pid": os.getpid()}

class Dice(Pictures):
    def __getitem__(self, index):
        return index, random.random(), np.random.random()

def names(batch):
    return {"pid": os.getpid(), "names": [sample["label"][1] for sample in batch]}

def jitter(sample, rng):
    return {"picture": sample["picture"] + rng.random(dtype=np.float32), "label": sample["label"][0]}
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A module of datasets that worker processes can import."""
    folder = tmp_path_factory.mktemp("datasets")
    (folder / "penstock_test_datasets.py").write_text(DATASETS)
    sys.path.insert(0, str(folder))
    yield __import__("penstock_test_datasets")
    sys.path.remove(str(folder))
    del sys.modules["penstock_test_datasets"]


@pytest.fixture
def loader():
    """Makes loaders, and closes them."""
    made = []

    def make(dataset, **settings):
        settings = {"executor": "thread", "num_workers": 2, **settings}
        if "batch_sampler" not in settings:
            settings.setdefault("batch_size", 4)
        made.append(penstock.Loader(dataset, **loader_settings(**settings)))
        return made[-1]

    yield make
    for each in made:
        each.close()


def labels(batches):
    return [batch["label"][0].tolist() for batch in batches]


def plain(value):
    """A batch as plain values, types included."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.tolist()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return (type(value), [plain(each) for each in value]) if isinstance(value, list | tuple) else value


# -- what is delivered -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_batches_are_those_of_a_dataloader(loader, data, executor):
    ours = loader(data.Pictures(), executor=executor, batch_size=7)
    theirs = DataLoader(data.Pictures(), batch_size=7)
    assert [plain(batch) for batch in ours] == [plain(batch) for batch in theirs]
    assert len(ours) == len(theirs) == 5


def test_tensors_of_a_tensor_dataset_come_through_processes(loader):
    tensors = TensorDataset(torch.arange(20.0).reshape(10, 2), torch.arange(10).to(torch.bfloat16))
    ours, theirs = loader(tensors, executor="process"), DataLoader(tensors, batch_size=4)
    assert [plain(batch) for batch in ours] == [plain(batch) for batch in theirs]


def test_tensors_lie_in_the_slab_itself(loader, data):
    direct = loader(data.Pictures())
    batch = next(passing := iter(direct))
    slabs = np.frombuffer(direct._engine.slabs.view, np.uint8)
    assert np.shares_memory(batch["picture"].numpy(), slabs)
    del slabs
    passing.close()


def test_keeping_every_batch_changes_none(loader, data):
    kept = list(loader(data.Pictures(), batch_size=1))
    assert [batch["picture"][0, 0, 0].item() for batch in kept] == list(range(LENGTH))


def test_device_numpy_delivers_arrays(loader, data):
    batch = next(iter(loader(data.Pictures(), device="numpy")))
    assert type(batch["picture"]) is np.ndarray
    assert batch["label"][0].tolist() == [0, 1, 2, 3]


def test_numpy_has_no_bfloat16_and_says_so(loader):
    with pytest.raises(SettingError, match="bfloat16, a type that numpy does not have"):
        next(iter(loader(TensorDataset(torch.zeros(4, dtype=torch.bfloat16)), device="numpy")))


def test_workers_do_not_import_torch_unless_the_dataset_does(loader, data):
    batches = list(loader(data.Modules(), executor="process"))
    assert not any(batch["torch"].any() for batch in batches)
    assert all(os.getpid() not in batch["pid"] for batch in batches)


def test_the_samples_of_a_batch_are_spread_over_the_workers(loader):
    meeting = threading.Barrier(2, timeout=30)

    class Meeting:
        def __len__(self):
            return LENGTH

        def __getitem__(self, index):
            if index in (1, LENGTH - 1):  # the very first one is looked at beforehand
                meeting.wait()  # in one worker alone, the first would wait in vain
            return index

    (batch,) = loader(Meeting(), batch_size=LENGTH, num_workers=2)
    assert batch.tolist() == list(range(LENGTH))


@pytest.mark.parametrize("workers", [1, 3])
def test_randomness_inside_a_dataset_follows_the_sample_and_not_the_worker(loader, data, workers):
    def thrown(workers):
        return [plain(batch) for batch in loader(data.Dice(), executor="process", num_workers=workers, shuffle=True)]

    batches = thrown(workers)
    assert batches == thrown(2)
    first = list(itertools.chain(*(batch[1][1][1] for batch in batches)))
    assert len(set(first)) == LENGTH


def test_a_transform_works_on_the_datasets_samples(loader, data):
    def pictures(**settings):
        return {
            int(label): picture[0, 0].item()
            for batch in loader(data.Pictures(), transform=data.jitter, **settings)
            for label, picture in zip(batch["label"], batch["picture"], strict=True)
        }

    alone = pictures(num_workers=1)
    assert alone == pictures(num_workers=2, executor="process", shuffle=True)
    assert all(label <= value < label + 1 for label, value in alone.items())
    assert alone != pictures(seed=1)


def test_a_list_is_a_dataset_too(loader):
    assert [batch.tolist() for batch in loader([5, 6, 7, 8, 9])] == [[5, 6, 7, 8], [9]]


# -- order -----------------------------------------------------------------------------------------------------


def test_shuffle_gives_another_order_each_epoch_and_the_same_again(loader, data):
    one, two = (loader(data.Pictures(), shuffle=True, seed=3) for _ in range(2))
    first, second = labels(one), labels(one)
    assert first != second
    assert sorted(itertools.chain(*first)) == list(range(LENGTH))
    two.set_epoch(1)
    assert labels(two) == second


def test_ranks_share_the_samples(loader, data):
    shares = [labels(loader(data.Pictures(), shuffle=True, rank=rank, world_size=3)) for rank in range(3)]
    assert sorted(itertools.chain(*itertools.chain(*shares))) == list(range(LENGTH))
    assert {len(share) for share in shares} == {3}


def test_max_samples_ends_the_epoch_early(loader, data):
    short = loader(data.Pictures(), max_samples=6)
    assert (labels(short), len(short)) == ([[0, 1, 2, 3], [4, 5]], 2)


def test_a_sampler_decides_and_is_asked_afresh_every_epoch(loader, data):
    sampled = loader(data.Pictures(), sampler=[9, 3, 5, 7, 1], drop_last=True)
    assert [labels(sampled), labels(sampled), len(sampled)] == [[[9, 3, 5, 7]], [[9, 3, 5, 7]], 1]


def test_a_distributed_sampler_is_told_the_epoch_and_not_shared_out_again(loader, data):
    dataset = data.Pictures()
    share = loader(dataset, sampler=DistributedSampler(dataset, 3, 1, shuffle=True))
    theirs = DistributedSampler(dataset, 3, 1, shuffle=True)
    for epoch in range(2):
        theirs.set_epoch(epoch)
        assert list(itertools.chain(*labels(share))) == list(theirs)


def test_a_batch_sampler_decides_on_sizes_too(loader, data):
    sizes = loader(data.Pictures(), batch_sampler=[[1, 2], [3], [9, 8, 7, 6, 5, 4]])
    assert labels(sizes) == [[1, 2], [3], [9, 8, 7, 6, 5, 4]]
    assert (len(sizes), sizes.batch_size) == (3, None)


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_batch_larger_than_all_that_were_foreseen_gets_larger_slabs(loader, data, executor):
    growing = [[at % LENGTH] for at in range(80)] + [list(range(20)), [7], list(range(LENGTH))]
    grown = loader(data.Pictures(), batch_sampler=growing, executor=executor)
    assert labels(grown) == growing
    assert labels(grown) == growing


def test_a_first_batch_without_samples_is_refused_with_the_reason(loader, data):
    with pytest.raises(SettingError, match="the first batch is empty"):
        list(loader(data.Pictures(), batch_sampler=[[], [1, 2]]))


def test_an_endless_batch_sampler_is_not_waited_for(loader, data):
    class Endless:
        def __iter__(self):
            return ([at % LENGTH, (at + 1) % LENGTH] for at in itertools.count())

    endless = loader(data.Pictures(), batch_sampler=Endless())
    got = [batch["label"][0].tolist() for batch in itertools.islice(endless, 200)]
    assert got == [[at % LENGTH, (at + 1) % LENGTH] for at in range(200)]
    with pytest.raises(TypeError):
        len(endless)


def test_a_sampler_that_fails_ends_the_pass_with_its_error(loader, data):
    def indices():
        yield from range(5)
        raise LookupError("no more")

    class Failing:
        def __iter__(self):
            return indices()

    with pytest.raises(LookupError, match="no more"):
        labels(loader(data.Pictures(), sampler=Failing()))


# -- resuming --------------------------------------------------------------------------------------------------

ORDERS = {
    "own": lambda: {"shuffle": True, "batch_size": 4},
    "sampler": lambda: {"sampler": DistributedSampler(range(LENGTH), 2, 0, seed=5), "batch_size": 4},
    "batch_sampler": lambda: {"batch_sampler": [[1, 2], [3], [9, 8, 7], [4, 5]]},
}


@pytest.mark.parametrize("order", ORDERS)
def test_a_pass_goes_on_with_the_very_next_sample_from_any_batch(loader, data, order):
    whole = loader(data.Pictures(), **ORDERS[order]())
    labels(whole)
    states, expected = [], []
    for batch in whole:
        expected.append(batch["label"][0].tolist())
        states.append(json.loads(json.dumps(whole.state_dict())))
    for number, state in enumerate(states, 1):
        resumed = loader(data.Pictures(), **ORDERS[order]())
        resumed.load_state_dict(state)
        assert labels(resumed) == expected[number:]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"seed": 1}, "seed 0, this loader has 1"),
        ({"shuffle": False}, "shuffle True, this loader has False"),
        ({"max_samples": 7}, "samples 30, this loader has 7"),
    ],
)
def test_a_state_of_another_order_is_refused(loader, data, changed, says):
    state = loader(data.Pictures(), shuffle=True).state_dict()
    with pytest.raises(SettingError, match=says):
        loader(data.Pictures(), **{"shuffle": True, **changed}).load_state_dict(state)


def test_a_state_of_a_dataset_of_another_length_is_refused(loader, data):
    state = loader(data.Pictures()).state_dict()
    with pytest.raises(SettingError, match="length 30, this loader has 31"):
        loader(data.Pictures(31)).load_state_dict(state)


def test_a_state_of_a_sampler_for_other_ranks_is_refused(loader, data):
    state = loader(data.Pictures(), sampler=DistributedSampler(range(LENGTH), 2, 0)).state_dict()
    with pytest.raises(SettingError, match="sampler_length 15, this loader has 10"):
        loader(data.Pictures(), sampler=DistributedSampler(range(LENGTH), 3, 0)).load_state_dict(state)


# -- collate_fn ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_collate_fn_makes_each_batch_in_one_worker(loader, data, executor):
    batches = list(loader(data.Pictures(), collate_fn=data.names, executor=executor, batch_size=8))
    assert [batch["names"] for batch in batches] == [
        [f"name {index}" for index in range(start, min(start + 8, LENGTH))] for start in range(0, LENGTH, 8)
    ]


def test_several_batches_of_a_collate_fn_are_made_at_a_time(loader, data):
    meeting = threading.Barrier(2, timeout=30)

    def meet(batch):
        meeting.wait()
        return len(batch)

    assert list(loader(data.Pictures(), collate_fn=meet, batch_size=15, num_workers=2)) == [15, 15]


def test_a_batch_that_kills_its_worker_twice_is_named_as_a_whole(loader, data):
    deadly = loader(data.Pictures(killers=[9]), collate_fn=data.names, executor="process")
    with pytest.raises(WorkerCrash, match="this batch kills the worker") as caught:
        list(deadly)
    assert (caught.value.shard, caught.value.member) == ("Pictures", "8")


def test_a_batch_without_its_bad_samples_goes_through_collate_fn(loader, data):
    skipping = loader(data.Pictures(bad=[8, 9]), collate_fn=data.names, on_error="skip")
    assert list(skipping)[2]["names"] == ["name 10", "name 11"]


# -- bad samples -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_bad_sample_is_raised_with_dataset_index_and_traceback(loader, data, executor):
    with pytest.raises(SampleError, match="ValueError: no picture 9") as caught:
        labels(loader(data.Pictures(bad=[9]), executor=executor))
    assert caught.value.where() == {"shard": "Pictures", "member": "9", "stage": "dataset"}
    assert "in __getitem__" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("on_error", "third"),
    [("skip", [8, 10, 11]), ("replace", [8, 10, 10, 11])],
)
def test_bad_samples_are_left_out_or_replaced_and_listed(loader, data, tmp_path, on_error, third):
    ledger = tmp_path / "bad.jsonl"
    tolerant = loader(data.Pictures(bad=[9]), on_error=on_error, bad_samples_path=str(ledger))
    batches = list(tolerant)
    assert batches[2]["label"][0].tolist() == third
    assert list(batches[2]["label"][1]) == [f"name {index}" for index in third]
    (line,) = map(json.loads, ledger.read_text().splitlines())
    assert (line["shard"], line["member"], line["reason"]) == ("Pictures", "9", "ValueError: no picture 9")


def test_a_sample_that_kills_workers_is_named(loader, data):
    with pytest.raises(WorkerCrash, match="this sample kills the worker") as caught:
        labels(loader(data.Pictures(killers=[9]), executor="process"))
    assert caught.value.member == "9"


# -- scripts, and what cannot be sent --------------------------------------------------------------------------


def test_a_dataset_defined_in_a_script_works(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
            import torch, penstock

            class Squares(torch.utils.data.Dataset):
                def __len__(self):
                    return 10

                def __getitem__(self, index):
                    return torch.tensor(index * index), f"square of {index}"

            if __name__ == "__main__":
                loader = penstock.Loader(Squares(), batch_size=4, num_workers=2,
                                         engine=penstock.EngineOptions("process"))
                for squares, names in loader:
                    print(squares.tolist(), names[0])
                loader.close()
        """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines() == [
        "[0, 1, 4, 9] square of 0",
        "[16, 25, 36, 49] square of 4",
        "[64, 81] square of 8",
    ], done.stderr


def test_a_script_that_starts_training_when_a_worker_imports_it_is_told_what_to_do(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
            import penstock

            class Numbers:
                def __len__(self):
                    return 10

                def __getitem__(self, index):
                    return index

            engine = penstock.EngineOptions("process")
            for batch in penstock.Loader(Numbers(), batch_size=4, num_workers=1, engine=engine):
                pass
        """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert 'under `if __name__ == "__main__":`' in done.stderr
    assert "WorkerCrash" in done.stderr.splitlines()[-1]


def test_a_dataset_that_cannot_be_pickled_runs_in_threads_only(loader):
    class Local:
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return index

    with pytest.raises(SettingError, match="cannot be sent to worker processes") as caught:
        list(loader(Local(), executor="process"))
    assert "executor='thread'" in caught.value.advice
    assert [batch.tolist() for batch in loader(Local())] == [[0, 1, 2, 3]]


def test_a_collate_fn_that_cannot_be_pickled_is_refused_with_a_way_out(loader, data):
    with pytest.raises(SettingError, match="cannot be sent to worker processes") as caught:
        list(loader(data.Pictures(), collate_fn=lambda batch: batch, executor="process"))
    assert "executor='thread'" in caught.value.advice


# -- settings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "says"),
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
def test_settings_that_do_not_go_together_are_refused(loader, data, settings, says):
    with pytest.raises(SettingError, match=says):
        loader(data.Pictures(), **settings)


def test_a_collate_fn_is_refused_for_shards(loader):
    with pytest.raises(SettingError, match="collate_fn is for map-style datasets"):
        loader("a.tar", fields={"x": penstock.Raw(".bin")}, collate_fn=list)


def test_repr_and_the_parts_of_a_dataloader_are_the_users_own(loader, data):
    dataset = data.Pictures()
    sampler = RandomSampler(dataset)
    batch_sampler = BatchSampler(sampler, 3, False)
    ours = loader(dataset, batch_sampler=batch_sampler)
    assert (ours.dataset, ours.sampler, ours.batch_sampler) == (dataset, sampler, batch_sampler)
    assert repr(ours).startswith("<Loader: Pictures of 30, batches of a batch_sampler; epoch 0")
    plain_order = loader(dataset, shuffle=True)
    assert sorted(plain_order.sampler) == list(range(LENGTH))
    assert len(plain_order.batch_sampler) == len(plain_order)


def test_an_empty_dataset_has_no_batches(loader):
    empty = loader(TensorDataset(torch.zeros(0)))
    assert (list(empty), len(empty), empty.epoch) == ([], 0, 1)


def test_a_pass_that_is_begun_anew_ends_the_other(loader, data):
    both = loader(data.Pictures())
    first = iter(both)
    next(first)
    assert len(list(both)) == 8
    with pytest.raises(PenstockError):
        next(first)

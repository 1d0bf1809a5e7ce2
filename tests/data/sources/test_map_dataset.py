"""Map-style datasets as sources, and what workers do with their samples."""

import itertools
import pickle
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, RandomSampler, Subset, TensorDataset

from penstock.core.contracts import BAD_SAMPLE, Task
from penstock.core.slab_layout import SlabLayout
from penstock.data.decode.collate_program import CollateProgram
from penstock.data.decode.dataset_program import DatasetSamples, has_getitems
from penstock.data.order.batches import BatchPlan
from penstock.data.order.sampler import SamplerOrder, SeededOrder
from penstock.data.sources.map_dataset import DatasetSource, is_dataset
from penstock.errors import SampleError, SettingError

# -- recognising a dataset -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [TensorDataset(torch.zeros(2)), [(1, 2)], range(3), np.zeros(3), [1, "a.tar"]])
def test_an_object_with_indices_and_a_length_is_a_dataset(data):
    assert is_dataset(data)


@pytest.mark.parametrize("shards", ["a.tar", ["a.tar", "b.tar"], (), {"a.tar": 1}, iter(["a.tar"]), {"a.tar"}])
def test_paths_are_shards(shards):
    assert not is_dataset(shards)


def test_an_iterable_dataset_is_refused_with_the_reason():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(())

    with pytest.raises(SettingError, match="IterableDataset"):
        is_dataset(Stream())


# -- making samples --------------------------------------------------------------------------------------------------


class Numbers:
    """A dataset of samples of one structure; `odd` has other values or exceptions for some indices."""

    def __init__(self, odd=None):
        self.odd = odd or {}

    def __len__(self):
        return 100

    def __getitem__(self, index):
        value = self.odd.get(index, {"x": np.full(2, index, "float32"), "name": f"n{index}"})
        if isinstance(value, Exception):
            raise value
        return value


class Bulk(Numbers):
    """The same with `__getitems__`, whose calls are recorded."""

    def __init__(self, odd=None):
        super().__init__(odd)
        self.calls = []

    def __getitems__(self, indices):
        self.calls.append(list(indices))
        return [self[index] for index in indices]


def own_order():
    return SeededOrder(100, 100, shuffle=False, seed=0, batch_plan=BatchPlan(4))


def source_of(dataset, **settings):
    settings = {"collate_fn": None, "on_error": "raise", **settings}
    return DatasetSource(DatasetSamples(dataset, 0, settings.pop("transform", None), False), own_order(), **settings)


def run(source, indices, epoch=0):
    """Run a task with these indices; return the slab's arrays and the extras."""
    source.begin_epoch(epoch, 0)
    layout = source.slab_layout(len(indices))
    memory = memoryview(bytearray(layout.size))
    rows = source.block_source.task_rows(np.array(indices), np.arange(len(indices)), np.zeros(len(indices)))
    extras = source.worker_program(layout).start(memoryview(b""), memory)(Task(0, 0, epoch, rows))
    return layout.arrays(memory), extras


def test_arrays_go_into_slots_and_strings_into_the_extras():
    arrays, extras = run(source_of(Numbers()), [4, 7])
    assert arrays["sample['x']"].tolist() == [[4, 4], [7, 7]]
    assert extras == [(0, "sample['name']", "n4"), (1, "sample['name']", "n7")]


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        ({"x": np.zeros(3, "float32"), "name": ""}, r"sample\['x'\] is float32\[3\] where the first .* float32\[2\]"),
        ({"x": np.zeros(2), "name": ""}, r"sample\['x'\] is float64\[2\] where the first sample had float32\[2\]"),
        ({"x": None, "name": ""}, r"sample\['x'\] is NoneType where the first sample had float32\[2\]"),
        ({"x": np.zeros(2, "float32")}, r"sample\['name'\] is missing, which the first sample had"),
        ({"x": np.zeros(2, "float32"), "name": "", "y": 1}, r"the first sample had no sample\['y'\]"),
        (7, r"is missing, which the first sample had"),
        (KeyError("gone"), "KeyError: 'gone'"),
    ],
)
def test_a_sample_of_another_structure_than_the_first_is_bad_and_both_are_named(odd, message):
    _, extras = run(source_of(Numbers({5: odd})), [4, 5, 6])
    ((slot, name, error),) = [extra for extra in extras if extra[1] == BAD_SAMPLE]
    assert (slot, name, type(error)) == (1, BAD_SAMPLE, SampleError)
    with pytest.raises(SampleError, match=message):
        raise error


def test_the_traceback_of_the_users_code_is_a_note_of_the_error():
    _, extras = run(source_of(Numbers({5: ZeroDivisionError("there")})), [5])
    error = pickle.loads(pickle.dumps(extras[0][2]))
    assert "in __getitem__" in error.__notes__[0]


def test_the_first_good_sample_defines_the_structure():
    bad = {0: ValueError("bad")}
    arrays, _ = run(source_of(Numbers(bad), on_error="skip"), [4])
    assert arrays["sample['x']"].tolist() == [[4, 4]]
    with pytest.raises(SampleError, match="ValueError: bad") as caught:
        run(source_of(Numbers(bad)), [4])
    assert (caught.value.shard, caught.value.member) == ("Numbers", "0")


def test_getitems_is_called_once_with_all_indices_of_a_task():
    bulk = Bulk()
    arrays, _ = run(source_of(bulk), [4, 7, 9])
    assert bulk.calls == [[4, 7, 9]]
    assert arrays["sample['x']"][:, 0].tolist() == [4, 7, 9]


def test_when_getitems_fails_only_the_bad_sample_is_bad():
    _, extras = run(source_of(Bulk({7: ValueError("no 7")})), [4, 7, 9])
    assert [(slot, error.reason) for slot, name, error in extras if name == BAD_SAMPLE] == [(1, "ValueError: no 7")]


def test_a_subset_has_getitems_only_if_the_dataset_inside_it_has():
    assert not has_getitems(Subset(Numbers(), [1, 2]))
    assert has_getitems(Subset(Subset(Bulk(), [1, 2]), [0]))


def draw(sample, rng):
    return {"draw": rng.random(), "x": sample["x"][0]}


def test_a_transform_gets_a_generator_of_its_own_for_each_sample_and_epoch():
    def draws(indices, epoch):
        return run(source_of(Numbers(), transform=draw), indices, epoch)[0]["sample['draw']"].tolist()

    assert draws([4, 7], 0) == draws([7, 4], 0)[::-1]
    assert len({*draws([4, 7], 0), *draws([4, 7], 1)}) == 4


class Opens(Numbers):
    """Opens its file at the first access, as datasets over HDF5 or LMDB do; from then on it cannot be pickled."""

    file = None

    def __getitem__(self, index):
        self.file = self.file or open(__file__)  # noqa: SIM115
        return super().__getitem__(index)


def test_a_dataset_that_opens_files_is_not_used_here_before_it_is_sent_to_workers(monkeypatch):
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or type(sys)(__name__))
    monkeypatch.setattr(sys.modules[__name__], "Opens", Opens, raising=False)
    dataset = Opens()
    source = DatasetSource(DatasetSamples(dataset, 0, None, in_processes=True), own_order(), None, "raise")
    source.begin_epoch(0, 0)
    with pytest.warns(ResourceWarning, match="unclosed file"):
        source.slab_layout(4)
    assert dataset.file is None


def test_a_dataset_that_cannot_be_pickled_is_refused_with_advice():
    class Local(Numbers):
        pass

    source = DatasetSource(DatasetSamples(Local(), 0, None, in_processes=True), own_order(), None, "raise")
    source.begin_epoch(0, 0)
    with pytest.raises(SettingError, match="cannot be sent to worker processes") as caught:
        source.slab_layout(4)
    assert "executor='thread'" in caught.value.advice


# -- collate_fn ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on_error", "expected", "bad"),
    [("raise", None, [0, 2]), ("skip", "n1 n3", [0, 2]), ("replace", "n1 n1 n3 n3", [0, 2])],
)
def test_collate_fn_gets_the_good_samples_under_the_error_policy(on_error, expected, bad):
    odd = {0: ValueError("bad"), 2: ValueError("bad")}

    def join(samples):
        return " ".join(sample["name"] for sample in samples)

    _, extras = run(source_of(Numbers(odd), collate_fn=join, on_error=on_error), [0, 1, 2, 3])
    assert [slot for slot, name, _ in extras if name == BAD_SAMPLE] == bad
    assert [value for _, name, value in extras if name != BAD_SAMPLE] == ([expected] if expected else [])


def test_a_collate_fn_that_fails_makes_its_samples_bad_each_with_its_own_error():
    program = CollateProgram(DatasetSamples(Numbers(), 0, None, False), sum, "skip")
    task = Task(0, 0, 0, np.array([[0, 4], [1, 5]]))
    extras = program.start(memoryview(b""), memoryview(b""))(task)
    assert [(slot, name, error.stage) for slot, name, error in extras] == [
        (0, BAD_SAMPLE, "collate"),
        (1, BAD_SAMPLE, "collate"),
    ]
    assert extras[0][2] is not extras[1][2]
    assert "TypeError" in extras[0][2].reason


def test_a_batch_of_a_collate_fn_is_made_by_one_worker():
    with_collate_fn, without = source_of(Numbers(), collate_fn=list), source_of(Numbers())
    assert all(request.one_worker for request in with_collate_fn.begin_epoch(0, 0).batches)
    assert not any(request.one_worker for request in without.begin_epoch(0, 0).batches)


def test_with_a_collate_fn_no_sample_is_inspected_and_a_batch_may_have_any_size():
    bulk = Bulk({0: ValueError("not fetched")})
    layout = source_of(bulk, collate_fn=list).slab_layout(4)
    assert (layout.slots, layout.size) == ({}, SlabLayout({}, 1).size)
    assert layout.batch_size > 1 << 40
    assert bulk.calls == []


def test_a_random_sampler_draws_from_torchs_generator_when_the_epoch_begins():
    samples = DatasetSamples(Numbers(), 0, None, False)
    source = DatasetSource(samples, SamplerOrder(RandomSampler(range(100)), BatchPlan(4)), None, "raise")
    torch.manual_seed(3)
    first = next(source.begin_epoch(0, 0).batches).samples.tolist()
    torch.manual_seed(3)
    assert list(itertools.islice(RandomSampler(range(100)), 4)) == first

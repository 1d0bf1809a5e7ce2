"""Copies of loaders and datasets, and the order that runs share."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

from penstock.errors import SettingError
from penstock.tuner import loader_copy
from penstock.tuner.loader_copy import IndexOrder, copy_dataset, copy_loader, preserve_rngs, template_loader

DATA = TensorDataset(torch.arange(10))


class Unsized(Dataset):
    def __getitem__(self, index):
        return index


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(6))


def identity(batch):
    return batch


def init_worker(worker):
    pass


def test_dataset_gets_torch_defaults():
    template = template_loader(DATA, 4)
    assert (template.batch_size, template.num_workers, len(template)) == (4, 0, 3)
    assert template_loader([1, 2, 3], 2).batch_size == 2
    assert template_loader(Stream(), 2).batch_size == 2


def test_loader_is_its_own_template():
    loader = DataLoader(DATA, batch_size=4)
    assert template_loader(loader) is loader


@pytest.mark.parametrize(
    ("source", "batch_size", "message"),
    [
        (DataLoader(DATA, batch_size=4), 2, "batch size of its own"),
        (DATA, None, "how large batches are"),
        (DATA, 0, "not a whole number above 0"),
        (DATA, True, "not a whole number above 0"),
        (DATA, 2.5, "not a whole number above 0"),
        (Unsized(), 2, "does not say how many samples"),
        (TensorDataset, 2, "neither a dataset"),
        (7, 2, "neither a dataset"),
        ([], 2, "is empty"),
        (DataLoader(TensorDataset(torch.zeros(0))), None, "is empty"),
    ],
)
def test_unusable_source_is_refused(source, batch_size, message):
    with pytest.raises(SettingError, match=message):
        template_loader(source, batch_size)


def test_copied_loader_keeps_all_other_arguments():
    generator = torch.Generator()
    template = DataLoader(
        DATA,
        batch_size=4,
        shuffle=True,
        drop_last=True,
        collate_fn=identity,
        worker_init_fn=init_worker,
        generator=generator,
        timeout=7,
        num_workers=1,
        multiprocessing_context="spawn",
        persistent_workers=True,
        in_order=False,
    )
    made = copy_loader(template, {"num_workers": 2, "prefetch_factor": 5})
    for name in ("dataset", "sampler", "batch_size", "drop_last", "collate_fn", "worker_init_fn", "generator"):
        assert getattr(made, name) is getattr(template, name)
    assert (made.timeout, made.persistent_workers, made.in_order) == (7, True, False)
    assert made.multiprocessing_context.get_start_method() == "spawn"
    assert (made.num_workers, made.prefetch_factor) == (2, 5)


def test_copied_loader_may_have_no_workers():
    template = DataLoader(DATA, num_workers=1, persistent_workers=True, timeout=3, multiprocessing_context="spawn")
    made = copy_loader(template, {"num_workers": 0})
    assert (made.num_workers, made.prefetch_factor, made.persistent_workers, made.timeout) == (0, None, False, 0)


@pytest.mark.parametrize(
    "template",
    [
        DataLoader(DATA, batch_size=4),
        DataLoader(DATA, batch_sampler=[[1, 2], [3]]),
        DataLoader(DATA, batch_size=None, sampler=[3, 1]),
        DataLoader(Stream(), batch_size=4, drop_last=True),
        DataLoader(Stream(), batch_size=None),
    ],
)
def test_copied_loader_delivers_the_same_batches(template):
    assert list(map(str, copy_loader(template, {}))) == list(map(str, template))


def test_order_continues_from_run_to_run_and_from_epoch_to_epoch():
    order = IndexOrder(DataLoader(DATA, batch_size=4))
    assert [next(order) for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [next(iter(order)), next(order)] == [[8, 9], [0, 1, 2, 3]]
    assert order.drawn == [[8, 9], [0, 1, 2, 3]]
    assert order.samples_per_batch == 14 / 4


def test_order_without_batches_counts_items():
    order = IndexOrder(DataLoader(DATA, batch_size=None))
    assert [next(order), next(order)] == [0, 1]
    assert order.samples_per_batch == 1


def test_sampler_for_one_epoch_is_refused_before_it_is_used_up():
    once = iter([[0], [1]])
    with pytest.raises(SettingError, match="only once"):
        IndexOrder(DataLoader(DATA, batch_sampler=once))
    assert list(once) == [[0], [1]]


def test_empty_sampler_is_refused():
    with pytest.raises(SettingError, match="sampler is empty"):
        next(IndexOrder(DataLoader(DATA, batch_sampler=[])))


def test_random_generators_are_restored_with_those_of_the_loader():
    generator = torch.Generator().manual_seed(3)
    own = torch.Generator().manual_seed(4)
    template = DataLoader(DATA, generator=generator, sampler=RandomSampler(DATA, generator=own))
    draws = (random.random, np.random.rand, lambda: float(torch.rand(1)))
    before = [*map(str, (random.getstate(), np.random.get_state(), torch.get_rng_state().tolist()))]
    states = generator.get_state().tolist(), own.get_state().tolist()
    with preserve_rngs(template):
        list(template)
        assert all(draw() >= 0 for draw in draws)
    assert before == [*map(str, (random.getstate(), np.random.get_state(), torch.get_rng_state().tolist()))]
    assert states == (generator.get_state().tolist(), own.get_state().tolist())


# -- datasets ------------------------------------------------------------------------------------------------------


class Data:
    def __init__(self, **fields):
        self.__dict__.update(fields)


def test_dataset_copy_shares_arrays_and_code():
    data = Data(array=np.zeros(5), tensor=torch.zeros(5), function=lambda: 1, names=["a", "b"])
    copy = copy_dataset(data)
    assert copy is not data
    assert copy.array is data.array
    assert copy.tensor is data.tensor
    assert copy.function is data.function
    assert copy.names == data.names
    assert copy.names is not data.names


def test_dataset_of_a_local_class_can_be_copied():
    class Local(Data):
        def __getitem__(self, index):
            self.opened = True
            return index

    data = Local(opened=False)
    assert copy_dataset(data)[3] == 3
    assert data.opened is False


def test_dataset_copy_respects_getstate(tmp_path):
    class Careful(Data):
        def __getstate__(self):
            return {**self.__dict__, "file": None}

    with open(tmp_path / "file", "w") as file:
        assert copy_dataset(Careful(file=file)).file is None


def test_dataset_with_an_open_file_cannot_be_copied(tmp_path):
    with open(tmp_path / "file", "w") as file:
        assert copy_dataset(Data(file=file)) is None


def test_dataset_that_is_too_large_is_not_copied(monkeypatch):
    monkeypatch.setattr(loader_copy, "COPY_BYTES_MAX", 1000)
    assert copy_dataset(Data(names=[str(at) * 10 for at in range(100)])) is None
    assert copy_dataset(Data(array=np.zeros(1000))) is not None

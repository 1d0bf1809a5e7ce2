import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

from penstock.errors import SettingError
from penstock.tuner.loader_copy import IndexOrder, like, pattern_of, untouched

DATA = TensorDataset(torch.arange(10))


class Unsized(Dataset):
    def __getitem__(self, at):
        return at


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(6))


def as_it_is(batch):
    return batch


def init(worker):
    pass


def test_a_dataset_gets_torchs_defaults():
    pattern = pattern_of(DATA, 4)
    assert (pattern.batch_size, pattern.num_workers, len(pattern)) == (4, 0, 3)
    assert pattern_of([1, 2, 3], 2).batch_size == 2
    assert pattern_of(Stream(), 2).batch_size == 2


def test_a_loader_is_its_own_pattern():
    loader = DataLoader(DATA, batch_size=4)
    assert pattern_of(loader) is loader


@pytest.mark.parametrize(
    ("source", "batch_size", "words"),
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
def test_what_cannot_be_tuned_is_refused_with_the_reason(source, batch_size, words):
    with pytest.raises(SettingError, match=words):
        pattern_of(source, batch_size)


def test_a_loader_like_another_keeps_everything_else():
    generator = torch.Generator()
    pattern = DataLoader(
        DATA,
        batch_size=4,
        shuffle=True,
        drop_last=True,
        collate_fn=as_it_is,
        worker_init_fn=init,
        generator=generator,
        timeout=7,
        num_workers=1,
        multiprocessing_context="spawn",
        persistent_workers=True,
        in_order=False,
    )
    made = like(pattern, {"num_workers": 2, "prefetch_factor": 5})
    for name in ("dataset", "sampler", "batch_size", "drop_last", "collate_fn", "worker_init_fn", "generator"):
        assert getattr(made, name) is getattr(pattern, name)
    assert (made.timeout, made.persistent_workers, made.in_order) == (7, True, False)
    assert made.multiprocessing_context.get_start_method() == "spawn"
    assert (made.num_workers, made.prefetch_factor) == (2, 5)


def test_a_loader_like_another_may_do_without_workers():
    pattern = DataLoader(DATA, num_workers=1, persistent_workers=True, timeout=3, multiprocessing_context="spawn")
    made = like(pattern, {"num_workers": 0})
    assert (made.num_workers, made.prefetch_factor, made.persistent_workers, made.timeout) == (0, None, False, 0)


@pytest.mark.parametrize(
    "pattern",
    [
        DataLoader(DATA, batch_size=4),
        DataLoader(DATA, batch_sampler=[[1, 2], [3]]),
        DataLoader(DATA, batch_size=None, sampler=[3, 1]),
        DataLoader(Stream(), batch_size=4, drop_last=True),
        DataLoader(Stream(), batch_size=None),
    ],
)
def test_a_loader_like_another_delivers_the_same(pattern):
    assert list(map(str, like(pattern, {}))) == list(map(str, pattern))


def test_an_order_goes_on_from_run_to_run_and_from_epoch_to_epoch():
    order = IndexOrder(DataLoader(DATA, batch_size=4))
    assert [next(order) for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [next(iter(order)), next(order)] == [[8, 9], [0, 1, 2, 3]]
    assert order.drawn == [[8, 9], [0, 1, 2, 3]]
    assert order.samples_per_batch == 14 / 4


def test_an_order_of_single_items_counts_items():
    order = IndexOrder(DataLoader(DATA, batch_size=None))
    assert [next(order), next(order)] == [0, 1]
    assert order.samples_per_batch == 1


def test_a_sampler_for_one_pass_only_is_refused_before_it_is_used_up():
    once = iter([[0], [1]])
    with pytest.raises(SettingError, match="only once"):
        IndexOrder(DataLoader(DATA, batch_sampler=once))
    assert list(once) == [[0], [1]]


def test_a_sampler_that_draws_nothing_is_refused():
    with pytest.raises(SettingError, match="draws nothing"):
        next(IndexOrder(DataLoader(DATA, batch_sampler=[])))


def test_dice_lie_as_before_the_loaders_own_too():
    generator = torch.Generator().manual_seed(3)
    own = torch.Generator().manual_seed(4)
    pattern = DataLoader(DATA, generator=generator, sampler=RandomSampler(DATA, generator=own))
    dice = (random.random, np.random.rand, lambda: float(torch.rand(1)))
    before = [*map(str, (random.getstate(), np.random.get_state(), torch.get_rng_state().tolist()))]
    states = generator.get_state().tolist(), own.get_state().tolist()
    with untouched(pattern):
        list(pattern)
        assert all(throw() >= 0 for throw in dice)
    assert before == [*map(str, (random.getstate(), np.random.get_state(), torch.get_rng_state().tolist()))]
    assert states == (generator.get_state().tolist(), own.get_state().tolist())

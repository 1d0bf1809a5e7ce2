import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from penstock.tuner.measure import SameSeed, repeats_itself


class Repeating(IterableDataset):
    def __iter__(self):
        for at in range(8):
            yield {"at": at, "noise": torch.rand(2), "more": (np.random.rand(2), random.random())}


class Dealing(Repeating):
    def __iter__(self):
        worker = get_worker_info()
        return (sample for at, sample in enumerate(super().__iter__()) if at % worker.num_workers == worker.id)


class Few(IterableDataset):
    """All that there is goes to the first worker."""

    def __iter__(self):
        return iter([1] if get_worker_info().id == 0 else [])


def as_it_is(batch):
    return batch


def two_workers(dataset, init_fn=None):
    return DataLoader(dataset, num_workers=2, prefetch_factor=1, batch_size=2, worker_init_fn=SameSeed(init_fn))


def test_a_dataset_that_gives_all_to_each_worker_is_found_out_though_it_throws_dice():
    assert repeats_itself(two_workers(Repeating()))


def test_a_dataset_that_deals_its_samples_out_is_not_suspected():
    assert not repeats_itself(two_workers(Dealing()))


def test_a_dataset_with_nothing_for_the_second_worker_repeats_nothing():
    assert not repeats_itself(two_workers(Few()))


def test_the_users_own_init_function_is_called_first():
    called = []
    SameSeed(called.append)(3)
    first = float(torch.rand(1)), random.random(), np.random.rand()
    SameSeed(None)(4)
    assert called == [3]
    assert first == (float(torch.rand(1)), random.random(), np.random.rand())


@pytest.mark.parametrize("sample", [[1, 2], "a", {"x": np.ones(2)}, torch.ones(2), (torch.ones(1), "b")])
def test_equal_batches_of_any_kind_are_seen_to_be_equal(sample):
    class Same(IterableDataset):
        def __iter__(self):
            return iter([sample])

    assert repeats_itself(DataLoader(Same(), num_workers=2, batch_size=None, collate_fn=as_it_is))

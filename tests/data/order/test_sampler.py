"""Batches in Penstock's own order, of a user's sampler, and of a user's batch sampler."""

import itertools

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, TensorDataset

from penstock.data.order.batches import BatchPlan
from penstock.data.order.ranks import RankShare
from penstock.data.order.sampler import BatchSamplerOrder, SamplerOrder, SeededOrder
from penstock.errors import SettingError


def batches(order, epoch=0, position=0):
    return [request.samples.tolist() for request in order.batch_requests(epoch, position, {})]


def samples_of(order, epoch=0):
    return list(itertools.chain(*batches(order, epoch)))


def seeded(length=10, **settings):
    return SeededOrder(length, length, **{"shuffle": False, "seed": 0, "batch_plan": BatchPlan(4), **settings})


class ShiftingSampler:
    """A sampler whose indices are shifted by its epoch."""

    def __init__(self, length=10):
        self.length, self.epoch = length, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.length

    def __iter__(self):
        return ((index + self.epoch) % self.length for index in range(self.length))


def test_a_seeded_order_has_every_sample_once_and_differs_between_epochs_and_seeds():
    shuffled = seeded(50, shuffle=True)
    first, second = (samples_of(shuffled, epoch) for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert first == samples_of(seeded(50, shuffle=True))
    assert first != samples_of(seeded(50, shuffle=True, seed=1))


def test_ranks_share_a_seeded_order_step_by_step():
    ranks = [batches(seeded(12, batch_plan=BatchPlan(2, False, RankShare(rank, 2)))) for rank in range(2)]
    assert ranks == [[[0, 2], [4, 6], [8, 10]], [[1, 3], [5, 7], [9, 11]]]


def test_the_indices_of_a_sampler_are_cut_into_batches():
    assert batches(SamplerOrder([3, 1, 2, 0, 4], BatchPlan(2))) == [[3, 1], [2, 0], [4]]
    assert batches(SamplerOrder([3, 1, 2, 0, 4], BatchPlan(2, drop_last=True))) == [[3, 1], [2, 0]]


def test_the_batches_of_a_batch_sampler_are_not_changed():
    order = BatchSamplerOrder([[5], [1, 2, 3], [], [4]])
    assert batches(order) == [[5], [1, 2, 3], [], [4]]
    assert order.num_batches() == 4


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("length", [0, 7, 8])
def test_the_number_of_batches_is_that_of_torch(length, drop_last):
    expected = BatchSampler(range(length), 4, drop_last)
    plan = BatchPlan(4, drop_last)
    assert SamplerOrder(range(length), plan).num_batches() == len(expected)
    assert BatchSamplerOrder(expected).num_batches() == len(expected)
    assert seeded(length, batch_plan=plan).num_batches() == len(expected)


@pytest.mark.parametrize(
    "order",
    [
        seeded(20, shuffle=True),
        SamplerOrder(ShiftingSampler(20), BatchPlan(4)),
        BatchSamplerOrder(BatchSampler(ShiftingSampler(20), 4, False)),
    ],
    ids=lambda order: type(order).__name__,
)
@pytest.mark.parametrize("epoch", [0, 3])
def test_an_epoch_can_be_resumed_at_the_end_of_any_batch(order, epoch):
    whole = list(order.batch_requests(epoch, 0, {}))
    for number, request in enumerate(whole, 1):
        assert batches(order, epoch, request.end) == [rest.samples.tolist() for rest in whole[number:]]


def test_a_sampler_that_has_become_shorter_cannot_be_resumed():
    with pytest.raises(SettingError, match="ends after 5 samples, before sample 8"):
        batches(SamplerOrder(range(5), BatchPlan(4)), position=8)
    with pytest.raises(SettingError, match="ends after 3 samples, before sample 8"):
        batches(BatchSamplerOrder([[1, 2, 3]]), position=8)


def test_a_batch_sampler_whose_batches_have_changed_cannot_be_resumed():
    with pytest.raises(SettingError, match="no batch of it begins at sample 4"):
        batches(BatchSamplerOrder([[1, 2, 3], [4, 5, 6]]), position=4)


def test_the_epoch_of_a_sampler_is_set():
    assert batches(SamplerOrder(ShiftingSampler(4), BatchPlan(4)), epoch=3) == [[3, 0, 1, 2]]
    assert batches(BatchSamplerOrder(BatchSampler(ShiftingSampler(4), 2, False)), epoch=1) == [[1, 2], [3, 0]]


def test_the_epoch_of_a_sampler_that_the_user_sets_is_not_changed():
    sampler = ShiftingSampler(4)
    order = SamplerOrder(sampler, BatchPlan(4))
    for epoch in (2, 3):
        sampler.set_epoch(epoch)
        assert batches(order, epoch=epoch - 2) == [[(index + epoch) % 4 for index in range(4)]]


def test_a_distributed_sampler_gives_the_samples_of_its_rank():
    data = TensorDataset(torch.arange(10))
    samplers = [DistributedSampler(data, num_replicas=2, rank=rank, shuffle=False) for rank in range(2)]
    assert [batches(SamplerOrder(sampler, BatchPlan(3))) for sampler in samplers] == [
        [[0, 2, 4], [6, 8]],
        [[1, 3, 5], [7, 9]],
    ]


@pytest.mark.parametrize("wrong", ["x", 1.5, None, [1]])
def test_a_value_that_is_not_an_index_is_refused(wrong):
    for order in (SamplerOrder([0, wrong], BatchPlan(2)), BatchSamplerOrder([[0, wrong]])):
        with pytest.raises(SettingError, match="not an index"):
            batches(order)


def test_indices_may_be_integers_of_numpy_or_torch():
    assert batches(SamplerOrder([np.int32(1), torch.tensor(2)], BatchPlan(2))) == [[1, 2]]

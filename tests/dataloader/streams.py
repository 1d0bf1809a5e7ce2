"""Iterable datasets, datasets with a state, and samplers with a state, for the tests of penstock.DataLoader."""

from __future__ import annotations

import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info


def _own_numbers(sizes: list[int]) -> range:
    """Return the numbers of this worker: worker w has the sizes[w] numbers after those of the workers before it."""
    info = get_worker_info()
    if info is None:
        return range(sum(sizes))
    start = sum(sizes[: info.id])
    return range(start, start + sizes[info.id])


class Plain(IterableDataset):
    """It has no state."""

    def __init__(self, sizes):
        self.sizes = sizes

    def __iter__(self):
        yield from _own_numbers(self.sizes)


class Shuffled(Plain):
    """It has no state, and a random order that comes from the worker's seed."""

    def __iter__(self):
        numbers = list(_own_numbers(self.sizes))
        return iter([numbers[each] for each in torch.randperm(len(numbers)).tolist()])


class WithState(Plain):
    """The dataset has a state: a position, and the number of its epoch, which its samples carry."""

    position = epoch = 0

    def __iter__(self):
        numbers = _own_numbers(self.sizes)
        while self.position < len(numbers):
            self.position += 1
            yield self.epoch * 1000 + numbers[self.position - 1]
        self.position = 0
        self.epoch += 1

    def state_dict(self):
        return {"position": self.position, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.position, self.epoch = state["position"], state["epoch"]


class IteratorWithState(Plain):
    """The iterator has a state, the dataset has none."""

    def __iter__(self):
        return _Iterator(_own_numbers(self.sizes))


class _Iterator:
    def __init__(self, numbers):
        self.numbers = numbers
        self.position = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.position == len(self.numbers):
            raise StopIteration
        self.position += 1
        return self.numbers[self.position - 1]

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


class OwnIterator(_Iterator, IterableDataset):
    """The dataset is its own iterator, and iter() begins anew."""

    def __init__(self, sizes):
        self.sizes = sizes

    def __iter__(self):
        super().__init__(_own_numbers(self.sizes))
        return self


STREAMS = [Plain, WithState, IteratorWithState, OwnIterator]


class CountingDataset(Dataset):
    """Map-style with a state: each sample carries how many the worker's copy has made before."""

    def __init__(self, length):
        self.length = length
        self.made = 0

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.made += 1
        return index, self.made

    def state_dict(self):
        return {"made": self.made}

    def load_state_dict(self, state):
        self.made = state["made"]


class EpochSamplerWithState(Sampler):
    """The order depends on the epoch, which the sampler counts itself."""

    def __init__(self, length):
        self.length = length
        self.position = self.epoch = 0

    def __len__(self):
        return self.length

    def __iter__(self):
        order = torch.randperm(self.length, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        while self.position < self.length:
            self.position += 1
            yield order[self.position - 1]
        self.position = 0
        self.epoch += 1

    def state_dict(self):
        return {"position": self.position, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.position, self.epoch = state["position"], state["epoch"]


class IteratorStateSampler(Sampler):
    """The iterator of the sampler has a state, the sampler has none."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __iter__(self):
        return _Iterator(range(self.length))

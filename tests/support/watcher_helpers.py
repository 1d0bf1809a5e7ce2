"""Datasets for tests of the watcher, where worker processes that start afresh can import them."""

import itertools

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info


class Numbers(Dataset):
    """Sample i is (i, a random number of the worker's)."""

    def __init__(self, size=24):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, at):
        return at, int(torch.randint(1 << 30, ()))


class Files(Dataset):
    """Opens its one file for every sample and reads it."""

    def __init__(self, path, size=8):
        self.path = path
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, at):
        with open(self.path, "rb", buffering=0) as file:
            return len(file.read(100))


class InOneGo(Numbers):
    """Makes whole batches, and must get its indices as a plain list."""

    def __getitems__(self, indices):
        assert type(indices) is list
        return indices


class Waiting(Numbers):
    """Workers in `slow` wait for the gate before every sample."""

    def __init__(self, gate, slow, size=24):
        super().__init__(size)
        self.gate = gate
        self.slow = slow

    def __getitem__(self, at):
        if get_worker_info().id in self.slow:
            assert self.gate.wait(60)
        return at


class Bad(Numbers):
    """Cannot make sample 5."""

    def __getitem__(self, at):
        if at == 5:
            raise ValueError("sample 5 is bad")
        return at


class Shards(IterableDataset):
    """Worker w yields `sizes[w]` times w: some have nothing at all."""

    def __init__(self, sizes):
        self.sizes = sizes

    def __iter__(self):
        info = get_worker_info()
        number = 0 if info is None else info.id
        return itertools.repeat(number, self.sizes[number])


class BadShards(IterableDataset):
    """Cannot be iterated over."""

    def __iter__(self):
        raise ValueError("no shards")


class Lengthy(Shards):
    """Tells a length, and counts how often it is asked."""

    asked = 0

    def __len__(self):
        self.asked += 1
        return sum(self.sizes)


class Nested(Numbers):
    """Has a loader of its own inside."""

    def __getitem__(self, at):
        return sum(int(batch.sum()) for batch in DataLoader([at] * 6, batch_size=2))


def bad_collate(samples):
    raise ValueError("cannot collate")


def bad_init(worker):
    raise ValueError("cannot begin")


def seeded_init(worker):
    """Shifts the worker's random numbers: seen in the batches if it is called once, after torch's own seeding."""
    torch.randint(1 << 30, (worker + 1,))

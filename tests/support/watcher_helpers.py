"""Datasets for tests of the watcher, in a module that spawned worker processes can import."""

import itertools

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info


class Numbers(Dataset):
    """Sample i is (i, a random number from the worker's generator)."""

    def __init__(self, size=24):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, at):
        return at, int(torch.randint(1 << 30, ()))


class Files(Dataset):
    """Opens the same file for every sample and reads 100 bytes of it."""

    def __init__(self, path, size=8):
        self.path = path
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, at):
        with open(self.path, "rb", buffering=0) as file:
            return len(file.read(100))


class WholeBatches(Numbers):
    """Makes whole batches by `__getitems__`, and fails unless the indices are a plain list."""

    def __getitems__(self, indices):
        assert type(indices) is list
        return indices


class Waiting(Numbers):
    """The workers in `slow` wait for the event `gate` before every sample."""

    def __init__(self, gate, slow, size=24):
        super().__init__(size)
        self.gate = gate
        self.slow = slow

    def __getitem__(self, at):
        if get_worker_info().id in self.slow:
            assert self.gate.wait(60)
        return at


class Bad(Numbers):
    """Raises for sample 5."""

    def __getitem__(self, at):
        if at == 5:
            raise ValueError("sample 5 is bad")
        return at


class Shards(IterableDataset):
    """Worker w yields its number w, `sizes[w]` times; a size may be 0."""

    def __init__(self, sizes):
        self.sizes = sizes

    def __iter__(self):
        info = get_worker_info()
        worker = 0 if info is None else info.id
        return itertools.repeat(worker, self.sizes[worker])


class BadShards(IterableDataset):
    """Raises when it is iterated over."""

    def __iter__(self):
        raise ValueError("no shards")


class SizedShards(Shards):
    """Shards with a length."""

    def __len__(self):
        return sum(self.sizes)


class Nested(Numbers):
    """Iterates over a DataLoader of its own for every sample."""

    def __getitem__(self, at):
        return sum(int(batch.sum()) for batch in DataLoader([at] * 6, batch_size=2))


def bad_collate(samples):
    raise ValueError("cannot collate")


def bad_init(worker):
    raise ValueError("cannot begin")


def seeded_init(worker):
    """Draw worker + 1 random numbers, so that batches show whether this ran once, after torch seeded the worker."""
    torch.randint(1 << 30, (worker + 1,))

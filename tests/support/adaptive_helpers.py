"""What tests of the adaptive loader share: datasets, a clock that waits, a controller that does as it is told."""

import os

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from penstock.testing import FakeClock
from penstock.tuner.adaptive.controller import Decision


class Numbers(Dataset):
    def __init__(self, count=120, bad=None, deadly=None):
        self.count, self.bad, self.deadly = count, bad, deadly

    def __len__(self):
        return self.count

    def __getitem__(self, at):
        if at == self.bad:
            raise ValueError(f"item {at} is bad")
        if at == self.deadly:
            os._exit(7)
        return torch.tensor(at)


class Stream(IterableDataset):
    """Deals its numbers out to its workers, or gives all to each."""

    def __init__(self, count=400, deals=True):
        self.count, self.deals = count, deals

    def __iter__(self):
        worker = get_worker_info()
        step = worker.num_workers if self.deals and worker else 1
        return iter(range(worker.id if self.deals and worker else 0, self.count, step))


class WaitingClock(FakeClock):
    """While `waits_s` is not 0, every look at it takes so long: inside next() that is waiting."""

    waits_s = 0.0

    def now(self):
        if self.waits_s:
            self.advance(self.waits_s)
        return super().now()


class Told:
    """Turns to one setting after the other, at every window."""

    def __init__(self, first, *others):
        self.setting = first
        self.others = list(others)
        self.refusals = []

    def decide(self, seen):
        if not self.others:
            return None
        self.before, self.setting = self.setting, self.others.pop(0)
        return Decision(self.setting, "told to", overlap=len(self.others) % 2 == 0)

    def refused(self, reason):
        self.refusals.append(reason)
        self.setting = self.before
        return Decision(self.setting, reason)


def numbers(batches):
    return [batch.tolist() for batch in batches]


def flat(batches):
    return [number for batch in batches for number in batch.tolist()]

"""Helpers for tests of the adaptive loader: datasets, a clock that waits, a controller with a fixed schedule."""

import os

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from penstock.testing import FakeClock
from penstock.tuner.adaptive.controller import Decision


class Numbers(Dataset):
    """Sample i is the number i; the sample `bad` raises, and the sample `deadly` ends the process that makes it."""

    def __init__(self, count=120, bad=None, deadly=None):
        self.count, self.bad, self.deadly = count, bad, deadly

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index == self.bad:
            raise ValueError(f"item {index} is bad")
        if index == self.deadly:
            os._exit(7)
        return torch.tensor(index)


class Stream(IterableDataset):
    """Divides its numbers between its workers, or gives all of them to each."""

    def __init__(self, count=400, divides=True):
        self.count, self.divides = count, divides

    def __iter__(self):
        worker = get_worker_info()
        step = worker.num_workers if self.divides and worker else 1
        return iter(range(worker.id if self.divides and worker else 0, self.count, step))


class WaitingClock(FakeClock):
    """A clock that advances by `waits_s` at every reading; the loader reads it before and after waiting for a batch."""

    waits_s = 0.0

    def now(self):
        if self.waits_s:
            self.advance(self.waits_s)
        return super().now()


class ScheduledPolicy:
    """A controller that changes to the next of the given settings at every window."""

    def __init__(self, first, *others):
        self.setting = first
        self.others = list(others)
        self.refusals = []

    def decide(self, stats):
        """Overlap the old and the new workers in every second change."""
        if not self.others:
            return None
        self.before, self.setting = self.setting, self.others.pop(0)
        return Decision(self.setting, "scheduled", overlap=len(self.others) % 2 == 0)

    def refused(self, reason):
        self.refusals.append(reason)
        self.setting = self.before
        return Decision(self.setting, reason)


def numbers(batches):
    """Return a list of numbers per batch."""
    return [batch.tolist() for batch in batches]


def flat(batches):
    """Return the numbers of all batches in one list."""
    return [number for batch in batches for number in batch.tolist()]

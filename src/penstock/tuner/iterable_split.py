"""Whether an iterable dataset deals its samples out to its workers, or gives all of them to each."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from penstock.tuner.measure import running


class SameSeed:
    """A worker_init_fn after which every worker throws the same dice."""

    def __init__(self, init_fn: Callable[[int], object] | None) -> None:
        self._init_fn = init_fn

    def __call__(self, worker: int) -> None:
        """In the worker, after torch has seeded it."""
        if self._init_fn is not None:
            self._init_fn(worker)
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)


def repeats_itself(two_workers: DataLoader[Any]) -> bool:
    """Whether an iterable dataset gives both workers the same first batch: then every sample comes twice.

    The loader must have two workers and `SameSeed`. Datasets whose samples are all alike look the same, too.
    """
    with running(iter(two_workers)) as iterator:
        batches = list(islice(iterator, 2))
    return len(batches) == 2 and _same(*batches)


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)

"""Short runs of real DataLoaders: how fast a setting delivers, and what the user's step takes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.errors import PenstockError

Step = Callable[[Any], object]

STEPS = 5
"""Times that the user's step is timed, after one that is not."""


class StepFailed(Exception):
    """The user's own step raised: the cause says what."""


@dataclass(frozen=True, slots=True)
class LoaderRate:
    """How one run went."""

    batches_s: float
    """Over whole windows, the warm-up left out."""
    first_s: float
    """From making the iterator to the first batch."""
    batches: int
    short: bool = False
    """The data was over before one window was: what came after the first batch is all there is to go by."""


def measure_rate(
    loader: DataLoader[Any], step: Step, *, seconds: float, until_s: float, clock: Clock = SYSTEM_CLOCK
) -> LoaderRate:
    """Run the loop until it was timed for so long, and over two windows if possible; never far beyond `until_s`.

    The first W·P batches are the warm-up. A window is W batches: in-order delivery repeats itself after so many, and
    means over anything else mislead.
    """
    window = max(1, loader.num_workers)
    warm = window * (loader.prefetch_factor or 1)
    began = clock.now()
    got_s: list[float] = []
    with running(iter(loader)) as iterator:
        for batch in iterator:
            got_s.append(clock.now())
            past, rest = divmod(len(got_s) - 1 - warm, window)
            if got_s[-1] >= until_s:
                break
            if past > 0 and rest == 0 and got_s[-1] - got_s[warm] >= (seconds if past > 1 else 2 * seconds):
                break
            take_step(step, batch)
    return _pace(got_s, began, warm, window)


def _pace(got_s: list[float], began: float, warm: int, window: int) -> LoaderRate:
    if len(got_s) < 2:
        raise PenstockError("less than two batches came: too few to tell a rate", stage="measure")
    whole = (len(got_s) - 1 - warm) // window * window
    first, last = (warm, warm + whole) if whole > 0 else (0, len(got_s) - 1)
    took_s = max(got_s[last] - got_s[first], 1e-9)
    return LoaderRate((last - first) / took_s, got_s[0] - began, len(got_s), short=whole <= 0)


def take_step(step: Step, batch: Any) -> None:
    """The user's step; what it raises is told apart from what loading raises."""
    try:
        step(batch)
    except Exception as error:
        raise StepFailed from error


@contextmanager
def running(iterator: Iterator[Any]) -> Iterator[Iterator[Any]]:
    """An iterator of torch's whose workers are gone afterwards, whoever still holds it."""
    try:
        yield iterator
    finally:
        shut_down(iterator)


def shut_down(iterator: Any) -> None:
    """Ends its workers; nothing where it has none."""
    end = getattr(iterator, "_shutdown_workers", None)
    if end is not None:
        end()


@dataclass(frozen=True, slots=True)
class StepCost:
    """Of one step, at the median."""

    step_s: float = 0.0
    cpu_s: float = 0.0
    """On cores that workers may want too: of one core at most, as the model has it."""


def time_step(step: Step, batch: Any, *, until_s: float) -> StepCost:
    """Run the user's step on the same batch a few times; the first is not counted."""
    take_step(step, batch)
    walls: list[float] = []
    cpus: list[float] = []
    while not walls or (len(walls) < STEPS and time.perf_counter() < until_s):
        began, cpu_began = time.perf_counter(), time.process_time()
        take_step(step, batch)
        walls.append(time.perf_counter() - began)
        cpus.append(time.process_time() - cpu_began)
    step_s = float(np.median(walls))
    return StepCost(step_s, min(step_s, float(np.median(cpus))))


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

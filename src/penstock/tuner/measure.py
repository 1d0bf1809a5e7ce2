"""Runs real DataLoaders briefly: measures a setting's rate and the step's cost, and detects repeated samples."""

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
"""Number of timed calls of the user's step, after one that is not timed."""


class StepFailed(Exception):
    """The user's own step raised an exception, which is the cause of this one."""


# -- the rate of a loader ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoaderRate:
    """The result of one run."""

    batches_s: float
    """Rate over whole windows, without the warm-up."""
    first_s: float
    """Seconds from creating the iterator to the first batch."""
    batches: int
    short: bool = False
    """Whether the data ended before one window was complete: the rate is that of all batches after the first."""


def measure_rate(
    loader: DataLoader[Any], step: Step, *, seconds: float, until_s: float, clock: Clock = SYSTEM_CLOCK
) -> LoaderRate:
    """Run the loop for so many seconds, and for two windows if possible; end soon after `until_s`.

    The first W·P batches are the warm-up (W workers, prefetch factor P). A window is W batches: in-order delivery is
    periodic with that length, and means over other lengths mislead.
    """
    window = max(1, loader.num_workers)
    warm_up = window * (loader.prefetch_factor or 1)
    start_s = clock.now()
    received_s: list[float] = []
    with shutdown_after(iter(loader)) as iterator:
        for batch in iterator:
            received_s.append(clock.now())
            windows, rest = divmod(len(received_s) - 1 - warm_up, window)
            if received_s[-1] >= until_s:
                break
            required_s = seconds if windows > 1 else 2 * seconds
            if windows > 0 and rest == 0 and received_s[-1] - received_s[warm_up] >= required_s:
                break
            call_step(step, batch)
    return _rate(received_s, start_s, warm_up, window)


def _rate(received_s: list[float], start_s: float, warm_up: int, window: int) -> LoaderRate:
    if len(received_s) < 2:
        raise PenstockError("fewer than two batches were delivered: too few for a rate", stage="measure")
    whole = (len(received_s) - 1 - warm_up) // window * window
    first, last = (warm_up, warm_up + whole) if whole > 0 else (0, len(received_s) - 1)
    elapsed_s = max(received_s[last] - received_s[first], 1e-9)
    return LoaderRate((last - first) / elapsed_s, received_s[0] - start_s, len(received_s), short=whole <= 0)


@contextmanager
def shutdown_after(iterator: Iterator[Any]) -> Iterator[Iterator[Any]]:
    """Yield an iterator of torch, and end its workers afterwards even if other code still refers to it."""
    try:
        yield iterator
    finally:
        shut_down_workers(iterator)


def shut_down_workers(iterator: Any) -> None:
    """End the workers of an iterator; do nothing if it has none."""
    shut_down = getattr(iterator, "_shutdown_workers", None) or getattr(iterator, "close", None)  # close: Penstock's
    if shut_down is not None:
        shut_down()


# -- the cost of a step --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepCost:
    """The median cost of the user's step."""

    step_s: float = 0.0
    cpu_s: float = 0.0
    """Seconds on cores that workers may need too; of one core at most, as the model assumes."""


def call_step(step: Step, batch: Any) -> None:
    """Call the user's step; its exceptions become StepFailed, so that those of loading differ."""
    try:
        step(batch)
    except Exception as error:
        raise StepFailed from error


def time_step(step: Step, batch: Any, *, until_s: float) -> StepCost:
    """Time some calls of the user's step on the same batch; the first is not counted."""
    call_step(step, batch)
    elapsed_s: list[float] = []
    cpu_s: list[float] = []
    while not elapsed_s or (len(elapsed_s) < STEPS and time.perf_counter() < until_s):
        start_s, cpu_start_s = time.perf_counter(), time.process_time()
        call_step(step, batch)
        elapsed_s.append(time.perf_counter() - start_s)
        cpu_s.append(time.process_time() - cpu_start_s)
    step_s = float(np.median(elapsed_s))
    return StepCost(step_s, min(step_s, float(np.median(cpu_s))))


# -- whether an iterable dataset divides its samples -----------------------------------------------------------------


class SameSeed:
    """A worker_init_fn that seeds the global random generators of every worker alike."""

    def __init__(self, init_fn: Callable[[int], object] | None) -> None:
        self._init_fn = init_fn

    def __call__(self, worker: int) -> None:
        """Run in the worker, after torch has seeded it."""
        if self._init_fn is not None:
            self._init_fn(worker)
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)


def workers_repeat_samples(two_workers: DataLoader[Any]) -> bool:
    """Return whether both workers of an iterable dataset deliver the same first batch: every sample then comes twice.

    The loader must have two workers and `SameSeed`. A dataset whose samples are all equal gives the same result.
    """
    with shutdown_after(iter(two_workers)) as iterator:
        batches = list(islice(iterator, 2))
    return len(batches) == 2 and _equal(*batches)


def _equal(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)

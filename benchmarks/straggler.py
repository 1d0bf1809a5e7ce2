"""Compares the loader with torch's DataLoader on uneven work: a slow worker, or heavy samples.

Both have the same dataset and as many workers. The work is a sleep, so that the result does not depend on the machine's
cores but only on the waiting of processes for each other. The start of the workers is not timed: the second epoch of
persistent workers is. Batches are small, because large ones even out heavy samples: with batches of 32 samples
DataLoader loses a fifth of its rate to them, with 8 almost half.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import penstock
from benchmarks.result import Line, in_turns, median_ratio

WORKERS = 8
BATCH = 8
ROUNDS = 3


@dataclass
class Uneven:
    """A map-style dataset whose samples take a fixed time, and longer in a slow worker or if the sample is heavy."""

    batches: int
    sample_s: float
    slower: float = 1.0
    """How many times longer a sample takes in the slow worker."""
    flag: str = ""
    """Path of a file; the worker process that removes it is the slow one."""
    heavier: float = 1.0
    """How many times longer a heavy sample takes."""
    heavy_share: float = 0.0
    main_pid: int = field(default_factory=os.getpid)
    slow_worker: bool | None = None
    """Whether this copy is in the slow worker; None until it makes its first sample in a worker."""

    def __len__(self) -> int:
        return BATCH * self.batches

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if self.slow_worker is None and os.getpid() != self.main_pid:
            self.slow_worker = bool(self.flag) and _remove(self.flag)
        heavy = np.random.default_rng(index).random() < self.heavy_share
        time.sleep(self.sample_s * (self.slower if self.slow_worker else 1.0) * (self.heavier if heavy else 1.0))
        return np.zeros((3, 16, 16), np.float32), index


def measure() -> Iterator[Line]:
    yield _compare(f"one of {WORKERS} workers 40 times slower", Uneven(96, 0.002, slower=40), 5.0)
    heavy = Uneven(600, 0.004, heavier=50, heavy_share=0.01)
    yield _compare("1% of the samples 50 times heavier", heavy, 1.5)


def _compare(what: str, dataset: Uneven, target: float) -> Line:
    ours, other = in_turns(
        [partial(rate_of_second_epoch, make, dataset) for make in (_make_penstock, _make_dataloader)], ROUNDS
    )
    return Line(
        f"map-style, {what}",
        f"{median(ours):,.0f} samples/s",
        f"DataLoader: {median(other):,.0f}",
        median_ratio(ours, other),
        target,
        "at least",
    )


def rate_of_second_epoch(make: Callable[[Uneven], Iterable[Any]], dataset: Uneven) -> float:
    """Return the samples per second of the second epoch; each sample must be delivered exactly once."""
    with tempfile.TemporaryDirectory() as folder:
        flag = Path(folder) / "slow"
        flag.touch()
        batches = make(replace(dataset, flag=str(flag)))
        for _ in batches:
            pass
        start = time.perf_counter()
        delivered = [number for _, numbers in batches for number in numbers.tolist()]
        elapsed_s = time.perf_counter() - start
    assert sorted(delivered) == list(range(len(dataset)))
    return len(delivered) / elapsed_s


def _make_dataloader(dataset: Uneven) -> Iterable[Any]:
    from torch.utils.data import DataLoader  # imported here, because Penstock's workers do not need it

    return DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True)


def _make_penstock(dataset: Uneven) -> Iterable[Any]:
    return penstock.Loader(
        dataset, batch_size=BATCH, shuffle=True, num_workers=WORKERS, engine=penstock.EngineOptions(executor="process")
    )


def _remove(flag: str) -> bool:
    with suppress(FileNotFoundError):
        os.unlink(flag)
        return True
    return False

"""Uneven work against torch's DataLoader, with the same dataset and as many workers: a slow worker, heavy samples.

The work is sleep, so that it does not depend on the cores of the machine: what is compared is who waits for whom.
Starting workers is not part of it: what is timed is the second epoch of workers that stay. Batches are small because
large ones even out heavy samples by themselves: of 32 samples, DataLoader loses a fifth to them, of 8 almost half.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
    """Every sample takes a while; longer in a slow worker, or if it is a heavy one."""

    batches: int
    sample_s: float
    slower: float = 1.0
    flag: str = ""
    """The worker process that takes this file away is slow from then on."""
    heavier: float = 1.0
    heavy_share: float = 0.0
    home: int = field(default_factory=os.getpid)
    slow: bool | None = None

    def __len__(self) -> int:
        return BATCH * self.batches

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if self.slow is None and os.getpid() != self.home:
            self.slow = bool(self.flag) and _taken(self.flag)
        heavy = np.random.default_rng(index).random() < self.heavy_share
        time.sleep(self.sample_s * (self.slower if self.slow else 1.0) * (self.heavier if heavy else 1.0))
        return np.zeros((3, 16, 16), np.float32), index


def measure() -> Iterator[Line]:
    yield _compare(f"one of {WORKERS} workers 40 times slower", Uneven(96, 0.002, slower=40), 5.0)
    heavy = Uneven(600, 0.004, heavier=50, heavy_share=0.01)
    yield _compare("1% of the samples 50 times heavier", heavy, 1.5)


def _compare(what: str, dataset: Uneven, target: float) -> Line:
    mine, theirs = in_turns([lambda: _rate(_ours, dataset), lambda: _rate(_torchs, dataset)], ROUNDS)
    return Line(
        f"map-style, {what}",
        f"{median(mine):,.0f} samples/s",
        f"DataLoader: {median(theirs):,.0f}",
        median_ratio(mine, theirs),
        target,
        "at least",
    )


def _rate(make: Callable[[Uneven], Iterable[Any]], dataset: Uneven) -> float:
    """Samples per second in the second epoch, in which each must have come once."""
    with tempfile.TemporaryDirectory() as folder:
        flag = Path(folder) / "slow"
        flag.touch()
        batches = make(replace(dataset, flag=str(flag)))
        for _ in batches:
            pass
        start = time.perf_counter()
        seen = [number for _, numbers in batches for number in numbers.tolist()]
        elapsed_s = time.perf_counter() - start
    assert sorted(seen) == list(range(len(dataset)))
    return len(seen) / elapsed_s


def _torchs(dataset: Uneven) -> Iterable[Any]:
    from torch.utils.data import DataLoader  # here, so that our workers need not import it

    return DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True)


def _ours(dataset: Uneven) -> Iterable[Any]:
    return penstock.Loader(
        dataset, batch_size=BATCH, shuffle=True, num_workers=WORKERS, engine=penstock.EngineOptions(executor="process")
    )


def _taken(flag: str) -> bool:
    with suppress(FileNotFoundError):
        os.unlink(flag)
        return True
    return False

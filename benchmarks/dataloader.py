"""Compares penstock.DataLoader with torch's DataLoader: the same dataset, the same settings, in one run.

Uneven work is that of `straggler.py`: a sleep, so that the machine's cores do not count. Tiny samples are 0.1 ms of
computing; each side has the best number of workers for it. The image dataset reads JPEGs with Pillow, and crops and
resizes them to 224. The start is the time from `iter()` to the first batch, with workers that have to be started.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import psutil
import torch
import torch.utils.data
from PIL import Image

import penstock
from benchmarks.result import Line, in_turns, median_ratio
from benchmarks.straggler import BATCH, WORKERS, Uneven, rate_of_second_epoch

ROUNDS = 3
TINY_WORKERS = (0, 1, 2, 4)
TINY_BATCH = 32
TINY_SAMPLES = 20_000
IMAGE_WORKERS = 2
IMAGE_BATCH = 32
IMAGES = 640

Make = Callable[..., Any]
"""A DataLoader class, torch's or Penstock's."""


def measure() -> Iterator[Line]:
    slow = Uneven(96, 0.002, slower=40)
    yield _compare(f"one of {WORKERS} workers 40 times slower", partial(_uneven, slow), 6.0)
    heavy = Uneven(600, 0.004, heavier=50, heavy_share=0.01)
    yield _compare("1% of the samples 50 times heavier", partial(_uneven, heavy), 1.6)
    images = Jpegs.made()
    yield _compare("JPEGs by Pillow to 224, 2 workers", partial(_images, images), 1.1)
    yield _compare("samples of 0.1 ms, best of 0, 1, 2 and 4 workers", _tiny, 1.5)
    yield _compare("starts per second, 2 workers", partial(_starts, images), 1.0)
    yield _compare("samples per MB of the workers' memory", partial(_memory, images), 1.0)


def _compare(what: str, rate: Callable[[Make], float], target: float) -> Line:
    ours, other = in_turns([partial(rate, penstock.DataLoader), partial(rate, torch.utils.data.DataLoader)], ROUNDS)
    figures = f"{median(ours):,.1f}", f"torch: {median(other):,.1f}"
    return Line(what, *figures, median_ratio(ours, other), target, "at least")


def _uneven(dataset: Uneven, make: Make) -> float:
    return rate_of_second_epoch(
        lambda data: make(data, batch_size=BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True), dataset
    )


@dataclass(frozen=True)
class Tiny:
    """Samples that take 0.1 ms of a core, by a number of operations that is found once."""

    operations: int
    rows: torch.Tensor

    @classmethod
    def made(cls) -> Tiny:
        dataset = cls(1000, torch.randn(1000, 16))
        times = []
        for index in range(200):
            start = time.perf_counter()
            dataset[index]
            times.append(time.perf_counter() - start)
        return replace(dataset, operations=round(1000 * 1e-4 / min(times)))

    def __len__(self) -> int:
        return TINY_SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        total = 0
        for number in range(self.operations):
            total += number
        return self.rows[index % 1000], total % 10


def _tiny(make: Make) -> float:
    dataset = Tiny.made()
    return max(_tiny_rate(make, dataset, workers) for workers in TINY_WORKERS)


def _tiny_rate(make: Make, dataset: Tiny, workers: int) -> float:
    loader = make(dataset, TINY_BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    iterator = iter(loader)
    for _ in range(8):
        next(iterator)
    start = time.perf_counter()
    batches = sum(1 for _ in iterator)
    return batches * TINY_BATCH / (time.perf_counter() - start)


@dataclass(frozen=True)
class Jpegs:
    """JPEGs in memory, cropped at random and resized, as for ImageNet."""

    files: tuple[bytes, ...]

    @classmethod
    def made(cls) -> Jpegs:
        rng = np.random.default_rng(0)
        small = rng.integers(0, 255, (16, 25, 33, 3), np.uint8)
        files = []
        for each in small:
            file = io.BytesIO()
            Image.fromarray(each).resize((500, 375), Image.Resampling.BICUBIC).save(file, "JPEG")
            files.append(file.getvalue())
        return cls(tuple(files))

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(io.BytesIO(self.files[index % len(self.files)])) as image:
            left, top = np.random.randint(0, 100, 2).tolist()
            resized = image.convert("RGB").crop((left, top, left + 275, top + 275)).resize((224, 224))
        return torch.from_numpy(np.array(resized)).permute(2, 0, 1).float().div_(255), index


def _images(dataset: Jpegs, make: Make) -> float:
    loader = make(dataset, IMAGE_BATCH, shuffle=True, num_workers=IMAGE_WORKERS, persistent_workers=True)
    for _ in loader:
        pass
    start = time.perf_counter()
    for _ in loader:
        pass
    return IMAGES / (time.perf_counter() - start)


def _starts(dataset: Jpegs, make: Make) -> float:
    loader = make(dataset, IMAGE_BATCH, num_workers=IMAGE_WORKERS)
    start = time.perf_counter()
    next(iter(loader))
    return 1 / (time.perf_counter() - start)


def _memory(dataset: Jpegs, make: Make) -> float:
    """Return samples held per MB that the loader and its workers take."""
    process = psutil.Process(os.getpid())
    before = process.memory_full_info().pss
    iterator = iter(make(dataset, IMAGE_BATCH, num_workers=IMAGE_WORKERS))
    batches = [next(iterator) for _ in range(4)]
    used = process.memory_full_info().pss - before
    used += sum(each.memory_full_info().pss for each in process.children())
    del batches
    return 4 * IMAGE_BATCH / (used / 2**20)

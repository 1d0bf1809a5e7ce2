"""Loads that sleep instead of waiting for a store or computing, so that eight ranks fit on two cores.

A load is a dataset with a simulated store, and the duration of the training's step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SAMPLE_BYTES = 64 << 10
FILE_SAMPLES = 64
"""Samples in the file; sample numbers beyond it read the same bytes again."""
BATCH = 2
WORKERS = 2
PREFETCH = 2

Lock = AbstractContextManager[bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepingLoad:
    """The durations of reading a sample and of a training step, in seconds."""

    name: str
    latency_s: float = 0.0
    """Seconds that a reader waits for a sample, however many others read at the same time."""
    store_s: float = 0.0
    """Seconds for which the store is busy with a sample: it serves one reader at a time, over all processes."""
    step_s: float = 0.04
    uneven_s: float = 0.0
    """Mean of a random time that is added to each step of each rank."""

    @property
    def store_bytes_s(self) -> float | None:
        """Bandwidth of the store; None: not limited."""
        return SAMPLE_BYTES / self.store_s if self.store_s else None

    def step_duration_s(self, rank: int, epoch: int, step: int) -> float:
        """Return the seconds of one step; a pure function of its arguments."""
        if not self.uneven_s:
            return self.step_s
        return self.step_s + float(np.random.default_rng([rank, epoch, step]).exponential(self.uneven_s))


UNEVEN = SleepingLoad(name="steps that vary", latency_s=0.002, step_s=0.03, uneven_s=0.02)
LATENCY = SleepingLoad(name="a store with high latency", latency_s=0.06, step_s=0.04)
SHARED = SleepingLoad(name="a store shared by all ranks", store_s=0.005)
LOADS = (UNEVEN, LATENCY, SHARED)


def make_file(folder: Path) -> Path:
    """Write the file that samples are read from."""
    path = folder / "samples.bin"
    path.write_bytes(os.urandom(SAMPLE_BYTES * FILE_SAMPLES))
    return path


class Samples:
    """A map-style dataset of the samples of one rank in one epoch.

    `cache` is the folder of the node's cache; an empty file in it marks a cached sample. None: the node has no cache.
    """

    def __init__(
        self, load: SleepingLoad, file: Path, store: Lock, sample_numbers: Sequence[int], cache: Path | None = None
    ) -> None:
        self._load, self._file, self._store, self._cache = load, file, store, cache
        self._sample_numbers = sample_numbers

    def __len__(self) -> int:
        return len(self._sample_numbers)

    def __getitem__(self, position: int) -> tuple[int, bool]:
        """Return the sample's number, and whether it was in the cache."""
        sample = int(self._sample_numbers[position])
        with open(self._file, "rb", buffering=0) as file:
            file.seek(sample % FILE_SAMPLES * SAMPLE_BYTES)
            file.read(SAMPLE_BYTES)
        mark = None if self._cache is None else self._cache / str(sample)
        if mark is not None and mark.exists():
            return sample, True
        if self._load.latency_s:
            time.sleep(self._load.latency_s)
        if self._load.store_s:
            with self._store:
                time.sleep(self._load.store_s)
        if mark is not None:
            mark.touch()
        return sample, False

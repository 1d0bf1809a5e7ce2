"""Loads that sleep where others wait, so that eight ranks on two cores are not in each other's way by computing."""

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
"""Different ones on disk: samples beyond them are the same bytes again."""
BATCH = 2
WORKERS = 2
PREFETCH = 2

Lock = AbstractContextManager[bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Toy:
    """Seconds per sample, and per step."""

    name: str
    latency_s: float = 0.0
    """Waited for by whoever reads, with nobody else in the way."""
    store_s: float = 0.0
    """The store serves nobody else meanwhile, in no process."""
    step_s: float = 0.04
    uneven_s: float = 0.0
    """On top of a step, on average: drawn anew for every step of every rank."""

    @property
    def store_bytes_s(self) -> float | None:
        """What such a store gives in all."""
        return SAMPLE_BYTES / self.store_s if self.store_s else None

    def step_of(self, rank: int, epoch: int, step: int) -> float:
        """Seconds."""
        if not self.uneven_s:
            return self.step_s
        return self.step_s + float(np.random.default_rng([rank, epoch, step]).exponential(self.uneven_s))


UNEVEN = Toy(name="steps that vary", latency_s=0.002, step_s=0.03, uneven_s=0.02)
LATENCY = Toy(name="a store far away", latency_s=0.06, step_s=0.04)
SHARED = Toy(name="a store that all share", store_s=0.005)
TOYS = (UNEVEN, LATENCY, SHARED)


def make_file(folder: Path) -> Path:
    """What samples are read from."""
    path = folder / "samples.bin"
    path.write_bytes(os.urandom(SAMPLE_BYTES * FILE_SAMPLES))
    return path


class Samples:
    """A map-style dataset over the samples of one rank in one epoch; `cache` is its node's, a file for each."""

    def __init__(self, toy: Toy, file: Path, store: Lock, ids: Sequence[int], cache: Path | None = None) -> None:
        self._toy, self._file, self._store, self._ids, self._cache = toy, file, store, ids, cache

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, at: int) -> tuple[int, bool]:
        """The sample's number, and whether it was in the cache."""
        sample = int(self._ids[at])
        with open(self._file, "rb", buffering=0) as file:
            file.seek(sample % FILE_SAMPLES * SAMPLE_BYTES)
            file.read(SAMPLE_BYTES)
        kept = None if self._cache is None else self._cache / str(sample)
        if kept is not None and kept.exists():
            return sample, True
        if self._toy.latency_s:
            time.sleep(self._toy.latency_s)
        if self._toy.store_s:
            with self._store:
                time.sleep(self._toy.store_s)
        if kept is not None:
            kept.touch()
        return sample, False

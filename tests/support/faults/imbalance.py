"""Faults in which one worker, shard or sample takes longer than the rest, so that in-order delivery waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from tests.support.faults.fault import Case, Training, fault
from tests.support.faults.image_dataset import (
    BATCH,
    SIDE,
    Both,
    Decode,
    ExtraWork,
    Wait,
    decode_corner,
    image_dataset,
    image_files,
    jpeg,
    loader,
)

SLOW_WORKER_WORKERS = 3
"""Number of workers in `slow_worker`."""
STRAGGLERS_IN = 100
"""Samples per heavy sample."""


@fault(expect="lagging_worker")
def slow_worker(case: Case) -> Iterator[Training]:
    """One of three workers waits longer for its samples, as with a bad mount, core or disk."""
    wait = Wait(case.pick(mild=0.006, severe=0.015, removed=0.0))
    extra = InOneWorker(case.seed % SLOW_WORKER_WORKERS, wait)
    yield Training(loader=loader(image_dataset(case, extra), num_workers=SLOW_WORKER_WORKERS))


@fault(expect="straggler_samples")
def stragglers(case: Case) -> Iterator[Training]:
    """One sample in a hundred takes far longer to decode than the others; these are the same samples in every epoch."""
    factor = case.pick(mild=50, severe=120, removed=1)
    heavy = np.random.default_rng(case.seed).permutation(case.steps * BATCH)[::STRAGGLERS_IN]
    data = jpeg(SIDE, case.seed)
    extra = HeavySamples(frozenset(heavy.tolist()), Decode(data, 0.001), Decode(data, 0.001 * factor))
    yield Training(loader=loader(image_dataset(case, extra)))


@fault(expect="shard_imbalance")
def uneven_shards(case: Case) -> Iterator[Training]:
    """One worker's shard holds most of the samples, so that it goes on alone when the other worker is done."""
    share = case.pick(mild=0.7, severe=0.9, removed=0.5)
    batches = round(case.steps * share)
    yield _sharded_training(case, (batches * BATCH, (case.steps - batches) * BATCH), workers=2, wait_s=0.001)


@fault(expect="shard_imbalance")
def few_shards(case: Case) -> Iterator[Training]:
    """There are fewer shards than workers, so that some workers have nothing to do."""
    shards = case.pick(mild=2, severe=1, removed=4)
    yield _sharded_training(case, (case.steps * BATCH // shards,) * shards, workers=4, wait_s=0.002)


@dataclass(frozen=True, slots=True)
class InOneWorker:
    """Extra work that is done only in the worker with this number, and never in the main process."""

    worker: int
    extra: ExtraWork

    def __call__(self, index: int) -> None:
        info = get_worker_info()
        if info is not None and info.id == self.worker:
            self.extra(index)


@dataclass(frozen=True, slots=True)
class HeavySamples:
    """Extra work that differs for some samples."""

    samples: frozenset[int]
    usual: ExtraWork
    heavy: ExtraWork

    def __call__(self, index: int) -> None:
        (self.heavy if index in self.samples else self.usual)(index)


class ShardedImages(IterableDataset[NDArray[np.uint8]]):
    """Dataset of shards with these numbers of samples; worker i of n has the shards i, i + n, and so on."""

    def __init__(self, files: tuple[Path, ...], shard_samples: tuple[int, ...], extra: ExtraWork) -> None:
        self._files = files
        self._shard_samples = shard_samples
        self._extra = extra

    def __iter__(self) -> Iterator[NDArray[np.uint8]]:
        info = get_worker_info()
        number, workers = (info.id, info.num_workers) if info else (0, 1)
        for index in range(sum(self._shard_samples[number::workers])):
            self._extra(index)
            yield decode_corner(self._files[index % len(self._files)].read_bytes())


def _sharded_training(case: Case, shard_samples: tuple[int, ...], workers: int, wait_s: float) -> Training:
    """Return a training whose workers wait about as long as they decode, so that two of them leave cores idle."""
    extra = Both(Wait(wait_s), Decode(jpeg(SIDE, case.seed), 0.001))
    dataset = ShardedImages(image_files(case.folder), shard_samples, extra)
    return Training(loader=loader(dataset, num_workers=workers))

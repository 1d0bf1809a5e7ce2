"""Some wait for others: one worker, one shard, one sample takes longer than the rest, and delivery is in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from tests.support.faults.fault import Case, Training, fault
from tests.support.faults.material import (
    BATCH,
    SIDE,
    Both,
    Decode,
    Extra,
    Wait,
    decoded,
    jpeg,
    loader,
    picture_files,
    pictures,
)

LAGGING_OF = 3
STRAGGLERS_IN = 100


@fault(expect="lagging_worker")
def slow_worker(case: Case) -> Iterator[Training]:
    """One of three workers waits longer for its samples: its mount, its core, its disk."""
    lag = InWorker(case.seed % LAGGING_OF, Wait(case.pick(mild=0.006, severe=0.015, removed=0.0)))
    yield Training(loader=loader(pictures(case, lag), num_workers=LAGGING_OF))


@fault(expect="straggler_samples")
def stragglers(case: Case) -> Iterator[Training]:
    """One sample in a hundred is far heavier to decode than the others, always the same ones."""
    heavier = case.pick(mild=50, severe=120, removed=1)
    chosen = np.random.default_rng(case.seed).permutation(case.steps * BATCH)[::STRAGGLERS_IN]
    data = jpeg(SIDE, case.seed)
    work = Heavy(frozenset(chosen.tolist()), Decode(data, 0.001), Decode(data, 0.001 * heavier))
    yield Training(loader=loader(pictures(case, work)))


@fault(expect="shard_imbalance")
def uneven_shards(case: Case) -> Iterator[Training]:
    """One worker's shard holds most of the samples: when the other is done, it goes on alone."""
    share = case.pick(mild=0.7, severe=0.9, removed=0.5)
    batches = round(case.steps * share)
    yield _sharded(case, (batches * BATCH, (case.steps - batches) * BATCH), workers=2, wait_s=0.001)


@fault(expect="shard_imbalance")
def few_shards(case: Case) -> Iterator[Training]:
    """Fewer shards than workers: the others have nothing to do."""
    shards = case.pick(mild=2, severe=1, removed=4)
    yield _sharded(case, (case.steps * BATCH // shards,) * shards, workers=4, wait_s=0.002)


@dataclass(frozen=True, slots=True)
class InWorker:
    """Only in that worker."""

    worker: int
    extra: Extra

    def __call__(self, index: int) -> None:
        """In the main process never."""
        info = get_worker_info()
        if info is not None and info.id == self.worker:
            self.extra(index)


@dataclass(frozen=True, slots=True)
class Heavy:
    """One extra for chosen samples, another for the rest."""

    chosen: frozenset[int]
    usual: Extra
    heavy: Extra

    def __call__(self, index: int) -> None:
        """By the sample, so again in the next epoch."""
        (self.heavy if index in self.chosen else self.usual)(index)


class Shards(IterableDataset[NDArray[np.uint8]]):
    """Shards of so many samples, dealt out to the workers in turn."""

    def __init__(self, files: tuple[Path, ...], sizes: tuple[int, ...], extra: Extra) -> None:
        self._files = files
        self._sizes = sizes
        self._extra = extra

    def __iter__(self) -> Iterator[NDArray[np.uint8]]:
        """This worker's share."""
        info = get_worker_info()
        number, workers = (info.id, info.num_workers) if info else (0, 1)
        for index in range(sum(self._sizes[number::workers])):
            self._extra(index)
            yield decoded(self._files[index % len(self._files)].read_bytes())


def _sharded(case: Case, sizes: tuple[int, ...], workers: int, wait_s: float) -> Training:
    """Reading and decoding take half the time each, so two workers do not fill two cores."""
    extra = Both(Wait(wait_s), Decode(jpeg(SIDE, case.seed), 0.001))
    return Training(loader=loader(Shards(picture_files(case.folder), sizes, extra), num_workers=workers))

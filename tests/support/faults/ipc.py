"""Faults between the samples and the training loop: a slow collate, a lock that workers share, and pickled batches."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import default_collate

from tests.support.faults.fault import Case, Training, fault
from tests.support.faults.image_dataset import BATCH, SIDE, Decode, ExtraWork, Wait, image_dataset, jpeg, loader


@fault(expect="slow_collate")
def slow_collate(case: Case) -> Iterator[Training]:
    """Collating a batch takes longer than making its samples."""
    extra = Decode(jpeg(SIDE, case.seed), case.pick(mild=0.024, severe=0.05, removed=0.0))
    yield Training(loader=loader(image_dataset(case), collate_fn=SlowCollate(extra)))


@fault(expect="lock_contention")
def one_lock(case: Case) -> Iterator[Training]:
    """Samples are fetched under a lock that all workers share, and therefore one after the other."""
    lock = None if case.removed else multiprocessing.Lock()
    extra = UnderLock(lock, Wait(case.level(mild=0.0018, severe=0.004)))
    yield Training(loader=loader(image_dataset(case, extra), num_workers=4))


@fault(expect="ipc_copy")
def pickled_batches(case: Case) -> Iterator[Training]:
    """Large float arrays go through a pipe as pickles; as tensors they would go through shared memory."""
    side = case.level(mild=192, severe=288)
    dataset = ConstantArrays(case.steps * BATCH, np.ones((3, side, side), np.float32))
    yield Training(loader=loader(dataset, collate_fn=default_collate if case.removed else stack_arrays))


@dataclass(frozen=True, slots=True)
class SlowCollate:
    """A collate_fn that does extra work, then what torch's default does."""

    extra: ExtraWork

    def __call__(self, samples: Sequence[NDArray[np.uint8]]) -> Any:
        self.extra(0)
        return default_collate(list(samples))


@dataclass(frozen=True, slots=True)
class UnderLock:
    """Extra work that is done under a lock, so by one process at a time; None: without a lock."""

    lock: Lock | None
    extra: ExtraWork

    def __call__(self, index: int) -> None:
        if self.lock is None:
            self.extra(index)
        else:
            with self.lock:
                self.extra(index)


@dataclass(frozen=True, slots=True)
class ConstantArrays:
    """Map-style dataset whose samples are all the same array, so that they cost nothing but their size."""

    length: int
    array: NDArray[np.float32]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        return self.array


def stack_arrays(samples: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Collate to an array, which torch's workers pickle, since they put only tensors into shared memory."""
    return np.stack(samples)

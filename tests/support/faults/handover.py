"""Between the samples and the loop: putting a batch together, taking turns at a lock, carrying it over."""

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
from tests.support.faults.material import BATCH, SIDE, Decode, Extra, Wait, jpeg, loader, pictures


@fault(expect="slow_collate")
def slow_collate(case: Case) -> Iterator[Training]:
    """Putting a batch together takes longer than making its samples."""
    work = Decode(jpeg(SIDE, case.seed), case.pick(mild=0.024, severe=0.05, removed=0.0))
    yield Training(loader=loader(pictures(case), collate_fn=Collate(work)))


@fault(expect="lock_contention")
def one_lock(case: Case) -> Iterator[Training]:
    """Samples are fetched under a lock that all workers share, so one after the other."""
    lock = None if case.removed else multiprocessing.Lock()
    fetch = Locked(lock, Wait(case.level(mild=0.0018, severe=0.004)))
    yield Training(loader=loader(pictures(case, fetch), num_workers=4))


@fault(expect="ipc_copy")
def pickled_batches(case: Case) -> Iterator[Training]:
    """Large float arrays go through a pipe as pickles; as tensors they would go through shared memory."""
    side = case.level(mild=192, severe=288)
    dataset = Planes(case.steps * BATCH, np.ones((3, side, side), np.float32))
    yield Training(loader=loader(dataset, collate_fn=default_collate if case.removed else stacked))


@dataclass(frozen=True, slots=True)
class Collate:
    """The usual, after more work than it should take."""

    work: Extra

    def __call__(self, samples: Sequence[NDArray[np.uint8]]) -> Any:
        """As a collate_fn."""
        self.work(0)
        return default_collate(list(samples))


@dataclass(frozen=True, slots=True)
class Locked:
    """Under a lock, if there is one."""

    lock: Lock | None
    extra: Extra

    def __call__(self, index: int) -> None:
        """One process at a time."""
        if self.lock is None:
            self.extra(index)
        else:
            with self.lock:
                self.extra(index)


@dataclass(frozen=True, slots=True)
class Planes:
    """Map-style: float arrays that cost nothing but their size."""

    length: int
    plane: NDArray[np.float32]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        return self.plane


def stacked(samples: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """An array, which torch's workers know no better than to pickle."""
    return np.stack(samples)

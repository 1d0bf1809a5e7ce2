"""Trainings that the faults do not have: a disk with one head read in order, samples of a few bytes, large arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tests.support.faults import Case, Training, fault
from tests.support.faults.disks import PIECE_BYTES, Extents, no_fuse, seek_disk
from tests.support.faults.handover import Planes
from tests.support.faults.material import BATCH, loader, noise_file

ROW_BYTES = 64 << 20
ROW = 16
"""Numbers in a tiny sample."""
SIDE = 192
"""Of a large array: eight of them are 3.5 MB."""


@fault(expect=None, missing=no_fuse)
def one_head(case: Case) -> Iterator[Training]:
    """A file read from front to back, batch by batch: two workers send the disk's one head back and forth."""
    file = noise_file(case.folder / "row", ROW_BYTES)
    places = np.arange(case.steps * BATCH) % (ROW_BYTES // PIECE_BYTES)
    with seek_disk(file.parent, seek_s=case.level(mild=0.0015, severe=0.004)) as disk:
        yield Training(loader=loader(Extents(disk / file.name, places[:, None] * PIECE_BYTES, PIECE_BYTES)))


@fault(expect=None)
def tiny_samples(case: Case) -> Iterator[Training]:
    """A few numbers out of memory: handing a batch over takes longer than making it."""
    yield Training(loader=loader(Rows(np.ones((case.steps * BATCH, ROW), np.float32))))


@fault(expect=None)
def large_arrays(case: Case) -> Iterator[Training]:
    """Arrays that cost nothing but their size, through shared memory."""
    yield Training(loader=loader(Planes(case.steps * BATCH, np.ones((3, SIDE, SIDE), np.float32))))


@dataclass(frozen=True, slots=True)
class Rows:
    """Map-style over a table."""

    table: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        return self.table[index]

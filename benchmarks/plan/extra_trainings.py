"""Trainings in addition to the faults: a disk with one head read in order, samples of a few bytes, large arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tests.support.faults import Case, Training, fault
from tests.support.faults.disks import PIECE_BYTES, FileRegions, no_fuse, seek_disk
from tests.support.faults.image_dataset import BATCH, loader, noise_file
from tests.support.faults.ipc import ConstantArrays

FILE_BYTES = 64 << 20
ROW_LENGTH = 16
"""Numbers in a tiny sample."""
SIDE = 192
"""Height and width of a large array: a batch of eight has 3.5 MB."""


@fault(expect=None, missing=no_fuse)
def one_head(case: Case) -> Iterator[Training]:
    """A file is read from front to back, batch by batch; with two workers the disk's one head moves back and forth."""
    file = noise_file(case.folder / "row", FILE_BYTES)
    places = np.arange(case.steps * BATCH) % (FILE_BYTES // PIECE_BYTES)
    with seek_disk(file.parent, seek_s=case.level(mild=0.0015, severe=0.004)) as disk:
        yield Training(loader=loader(FileRegions(disk / file.name, places[:, None] * PIECE_BYTES, PIECE_BYTES)))


@fault(expect=None)
def tiny_samples(case: Case) -> Iterator[Training]:
    """A few numbers from memory: the IPC of a batch takes longer than making it."""
    yield Training(loader=loader(TableRows(np.ones((case.steps * BATCH, ROW_LENGTH), np.float32))))


@fault(expect=None)
def large_arrays(case: Case) -> Iterator[Training]:
    """Arrays that need no work, only their transfer through shared memory."""
    yield Training(loader=loader(ConstantArrays(case.steps * BATCH, np.ones((3, SIDE, SIDE), np.float32))))


@dataclass(frozen=True, slots=True)
class TableRows:
    """A map-style dataset of the rows of a table."""

    table: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        return self.table[index]

"""What a worker is asked, and what it answers: made by the flow, moved by the engine, which does not look inside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

TaskRows = NDArray[np.int64]
"""One row per sample. Column 0 is the slot in the slab; the rest is between whoever made the rows and the work."""


@dataclass(frozen=True, slots=True)
class Task:
    """Some slots of one batch."""

    number: int
    slab_start: int
    """Where the batch's slab begins in the slab memory."""
    epoch: int
    rows: TaskRows


@dataclass(frozen=True, slots=True)
class TaskResult:
    """A finished task: what could not go into the slab, and how long it took."""

    number: int
    extras: list[tuple[int, str, Any]]
    """(slot, name, value) of values without a fixed shape; an exception under the name "!" is a bad sample."""
    busy_s: float
    starved_s: float
    """How long the worker had waited for this task."""


TaskRunner = Callable[[Task], list[tuple[int, str, Any]]]
BAD_SAMPLE = "!"


class WorkerProgram(Protocol):
    """Picklable; becomes a runner in whichever process or thread it lands."""

    def start(self, arena: memoryview, slabs: memoryview) -> TaskRunner:
        """Set up, over the shared memory as this process sees it."""
        ...


Ids = NDArray[np.int64]
NO_BLOCK = -1
NO_BLOCK_START = -1
"""Where the block of a sample lies that has none."""


def no_worker_reads(samples: Ids) -> int:  # noqa: ARG001
    """Bytes that workers read for themselves, where all samples lie in blocks."""
    return 0


class BlockSource(Protocol):
    """Made by the flow; called by the conductor, and `fill` by its reader threads."""

    def blocks_of(self, samples: Ids) -> Ids:
        """The block each sample's bytes are in; NO_BLOCK where nothing needs to be fetched."""
        ...

    def block_bytes(self, block: int) -> int:
        """How much arena the block takes."""
        ...

    def read_block(self, block: int, into: memoryview) -> int:
        """Fetch the block, blocking; returns the bytes read from storage. Called from several threads at once."""
        ...

    def task_rows(self, samples: Ids, slots: Ids, block_starts: Ids) -> TaskRows:
        """What workers are told: `bases` is where each sample's block lies in the arena, or NO_BASE."""
        ...

    def rng_ids(self, samples: Ids) -> Ids:
        """Return, for each sample, the number that seeds its random draws together with the seed and the epoch."""
        ...

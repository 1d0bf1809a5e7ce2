"""The types that `penstock.data` and `penstock.engine` exchange, since neither imports the other.

An epoch's order becomes one `BatchRequest` per batch. The engine reads the blocks of its samples from a `BlockSource`,
cuts it into `Task`s for workers, which run a `WorkerProgram`, collects one `TaskResult` for each, and delivers a
`CompleteBatch` when all slots of the batch's slab are filled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.core.types import Ids

NO_BLOCK = -1
"""Block number of a sample that lies in no block: its worker reads or makes it."""
NO_BLOCK_START = -1
"""Arena offset of the block of such a sample."""
BAD_SAMPLE = "!"
"""Name under which a worker returns the exception of a sample that failed, instead of a value."""

TaskRows = Ids
"""One row per sample. Column 0 is the slot in the slab; only the block source and the worker program know the rest."""
Extras = list[tuple[int, str, Any]]
"""(slot, name, value) of what is not in the slab: values without a fixed shape, and errors named BAD_SAMPLE."""


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """One batch of an epoch on this rank, to be made: slot i holds samples[i]."""

    epoch: int
    samples: Ids
    end: int
    """The epoch's position after this batch: samples delivered so far, over all ranks."""
    rng_ids: Ids | None = None
    """Numbers that seed the samples' random draws, with the seed and the epoch; None if `samples` themselves do."""
    number: int = 0
    """The batch's number, counted over all epochs of a loader. Given when the batch is passed to the engine."""
    one_worker: bool = False
    """Whether one worker must make the whole batch."""
    padding: int = 0
    """Samples at the end that the epoch has delivered before, so that all ranks have equally many."""
    first_of_epoch: bool = False
    """Whether the training loop waits for this batch and has no other meanwhile."""


def no_worker_reads(samples: Ids) -> int:  # noqa: ARG001
    """Return 0: the bytes that workers read themselves where all samples lie in blocks."""
    return 0


@dataclass(frozen=True, slots=True)
class EpochRequest:
    """The rest of an epoch for this rank."""

    batches: Iterator[BatchRequest]
    """The batches; an endless iterator where a sampler is endless."""
    block_uses: Callable[[int], int]
    """The number of samples that these batches take from a block; the block is dropped after so many."""
    worker_read_bytes: Callable[[Ids], int] = no_worker_reads
    """The bytes of samples that lie in no block and are read by workers."""
    order: Mapping[str, Any] = field(default_factory=dict)
    """The part of a checkpoint with which this epoch has the same order again; complete after the first batch."""


@dataclass(frozen=True, slots=True)
class Task:
    """Some slots of one batch, for one worker."""

    number: int
    slab_start: int
    """Offset of the batch's slab in the memory of all slabs, in bytes."""
    epoch: int
    rows: TaskRows
    padding: int = 0
    """Samples at the end of the batch that are padding; for programs that make whole batches."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """A finished task: what could not go into the slab, and how long it took."""

    number: int
    extras: Extras
    busy_s: float
    """Seconds the worker spent on the task."""
    starved_s: float
    """Seconds the worker had waited for the task."""


TaskRunner = Callable[[Task], Extras]


class WorkerProgram(Protocol):
    """The work on tasks. Picklable, since it is sent to worker processes; worker threads share it."""

    def start(self, arena: memoryview, slabs: memoryview) -> TaskRunner:
        """Return the function that runs tasks, over the shared memory as mapped in this process."""
        ...


class BlockSource(Protocol):
    """Gives the engine the bytes of samples, block by block.

    `read_block` is called by several reader threads at once, all other methods by the engine's scheduler thread.
    """

    def blocks_of(self, samples: Ids) -> Ids:
        """Return the block that holds each sample's bytes; NO_BLOCK where nothing is to be read."""
        ...

    def block_bytes(self, block: int) -> int:
        """Return how many bytes of the arena the block takes."""
        ...

    def read_block(self, block: int, into: memoryview) -> int:
        """Read the block and return the number of bytes read from storage. Blocks until that is done."""
        ...

    def task_rows(self, samples: Ids, slots: Ids, block_starts: Ids) -> TaskRows:
        """Return the rows of a task; `block_starts` are the arena offsets of the samples' blocks, or NO_BLOCK_START."""
        ...


class CompleteBatch(Protocol):
    """A batch whose slots are all filled, as the engine delivers it."""

    request: BatchRequest
    slab: int
    """Number of the slab that holds the batch."""
    extras: Extras

"""What the loader asks of whatever it is fed with: shards, or a map-style dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import BlockSource, WorkerProgram, no_worker_reads
from penstock.core.slab_layout import SlabLayout
from penstock.data.batch.delivery import SampleNames
from penstock.data.order.batches import BatchIndices
from penstock.data.order.checkpoint import Identity

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EpochShare:
    """What is left of an epoch for this rank."""

    portions: Iterator[BatchIndices]
    """Its batches; without end where a sampler has none."""
    uses: Callable[[int], int]
    """How many of its samples a block has."""
    whole: bool = False
    """Whether each batch must be made by one worker."""
    worker_read_bytes: Callable[[Ids], int] = no_worker_reads
    """Bytes of samples that no block has: workers read them for themselves."""


@dataclass(frozen=True, slots=True)
class ReadSizes:
    """What is read at a time, for the plan of memory."""

    block_sizes: Ids
    """About how much each block takes; none where nothing is read."""
    blocks_in_use: int
    """On this rank, at any moment."""
    remote: bool = False
    """Every read waits for a network."""


class Source(SampleNames, Protocol):
    """Samples, their order and what is done to them."""

    @property
    def supply(self) -> BlockSource:
        """The engine's side of it."""
        ...

    @property
    def own_code(self) -> bool:
        """Whether workers run nothing of the user's."""
        ...

    def __len__(self) -> int:
        """Samples there are to deliver, over all ranks."""
        ...

    def count(self) -> int:
        """Batches of an epoch on this rank."""
        ...

    def per_rank(self) -> int:
        """Samples of an epoch on this rank."""
        ...

    def portions(self, epoch: int, position: int) -> Iterator[BatchIndices]:
        """This rank's batches of the epoch from that position on; nothing is begun by asking."""
        ...

    def share(self, epoch: int, position: int) -> EpochShare:
        """The same, to be delivered now."""
        ...

    def reading(self) -> ReadSizes:
        """How much arena it would like."""
        ...

    def layout(self, batch_size: int) -> SlabLayout:
        """The slots of a batch of at most that many samples, as the first sample has them."""
        ...

    def work(self, layout: SlabLayout) -> WorkerProgram:
        """What workers run."""
        ...

    def identity(self) -> Identity:
        """What decides the order of an epoch."""
        ...

    def close(self) -> None:
        """Give back what it holds open."""
        ...

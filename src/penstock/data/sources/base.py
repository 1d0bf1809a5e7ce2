"""The protocol of a source: shards, shards read by a sampler, or a map-style dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.core.contracts import BatchRequest, BlockSource, EpochRequest, WorkerProgram
from penstock.core.slab_layout import SlabLayout
from penstock.core.types import Ids
from penstock.data.order.checkpoint import Identity, Order
from penstock.errors import PenstockError


@dataclass(frozen=True, slots=True)
class ReadSizes:
    """How much is read at a time, for the division of memory between arena, slabs and workers."""

    block_sizes: Ids
    """About how many bytes each block takes; empty where nothing is read."""
    blocks_in_use: int
    """Blocks that this rank uses at a time."""
    remote: bool = False
    """Whether every read waits for a network."""


class SampleNames(Protocol):
    """The part of a source that delivery needs: it completes batches and says where a sample comes from."""

    @property
    def marks_padding(self) -> bool:
        """Whether batches are dicts, to which "__padding__" is added."""
        ...

    def assemble(self, values: dict[str, Any], samples: Ids) -> Any:
        """Return the batch for the training loop, from arrays or tensors and lists by name."""
        ...

    def location(self, sample: int, suffix: str | None = None) -> tuple[str, str, int | None]:
        """Return shard, member and, if it has one, offset of that part of a sample; without a suffix, of the sample."""
        ...


def add_location(error: PenstockError, sample: int, names: SampleNames) -> PenstockError:
    """Add shard, member and offset to the error of a sample, unless it has them.

    A worker knows only the suffix of a member's name.
    """
    if error.shard is not None:
        return error
    shard, member, offset = names.location(sample, error.member)
    error.member = member
    return error.at(shard=shard, offset=offset)


class Source(SampleNames, Protocol):
    """The samples of a loader, their order and their keys, and what workers do with them."""

    @property
    def block_source(self) -> BlockSource:
        """The block source in which the engine finds the bytes of the samples."""
        ...

    @property
    def incomplete(self) -> Sequence[PenstockError]:
        """This rank's share of the samples that are not in the order, because they lack a part; an error for each."""
        ...

    @property
    def whole_samples(self) -> int:
        """This rank's share of the samples that have all parts, whether an epoch takes them or not."""
        ...

    @property
    def filtered(self) -> int:
        """Samples that a filter of the user has rejected."""
        ...

    @property
    def runs_user_code(self) -> bool:
        """Whether workers run code of the user, such as a transform or a dataset."""
        ...

    def __len__(self) -> int:
        """Return the number of samples in an epoch, over all ranks."""
        ...

    def num_batches(self) -> int:
        """Return the number of batches in an epoch on this rank."""
        ...

    def samples_per_rank(self) -> int:
        """Return the number of samples in an epoch on this rank."""
        ...

    def batch_requests(self, epoch: int, position: int, order: Order | None = None) -> Iterator[BatchRequest]:
        """Yield this rank's batches of the epoch from that position on. This does not begin the epoch."""
        ...

    def begin_epoch(self, epoch: int, position: int, order: Order | None = None) -> EpochRequest:
        """Begin an epoch at that position, and return its batches, to be delivered now.

        `order` is what a checkpoint holds about the order of this epoch; None if there is none.
        """
        ...

    def next_order(self) -> Order:
        """Return what a checkpoint must hold about the order of an epoch that has not begun."""
        ...

    def warn_if_unrepeatable(self) -> None:
        """Log a warning if the order of the epoch cannot be repeated, and so not be resumed."""
        ...

    def read_sizes(self) -> ReadSizes:
        """Return how much arena the source can use."""
        ...

    def slab_layout(self, batch_size: int) -> SlabLayout:
        """Return the layout of a batch of at most that many samples, inferred from the first samples."""
        ...

    def worker_program(self, layout: SlabLayout) -> WorkerProgram:
        """Return what workers run."""
        ...

    def identity(self) -> Identity:
        """Return what decides the order of an epoch, by name."""
        ...

    def close(self) -> None:
        """Close the files that are open."""
        ...

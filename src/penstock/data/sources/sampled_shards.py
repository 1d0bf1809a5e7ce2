"""A source of samples in shards, in the order of the user's sampler or batch sampler."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.core.contracts import BatchRequest, EpochRequest, WorkerProgram
from penstock.core.format import format_bytes
from penstock.core.slab_layout import SlabLayout
from penstock.core.types import Ids
from penstock.data.order.checkpoint import Order
from penstock.data.order.sampler import BatchOrder
from penstock.data.read.sampled_read import MAX_BLOCK_READS, SampledBlockSource, SampledReadCounts
from penstock.data.sources.base import ReadSizes
from penstock.data.sources.shards import BATCHES_IN_MEMORY, ShardSource
from penstock.errors import PenstockError

log = logging.getLogger("penstock")


class SampledShardSource:
    """Shards read in the order of a sampler. The `ShardSource` inside it decides everything but order and reading.

    A request's samples are picks: a pick is one use of a sample in an epoch, see `SampledBlockSource`.
    """

    def __init__(self, shards: ShardSource, batch_order: BatchOrder, batch_size: int) -> None:
        """`batch_size` is the usual size of a batch; where a batch_sampler decides it, an estimate."""
        self._shards = shards
        self._batch_order = batch_order
        self._batch_size = batch_size
        self._block_bytes = shards.order_settings.block_bytes
        self.block_source = SampledBlockSource(
            shards.sample_index, self._block_bytes, direct=not shards.page_cache, cache=shards.cache
        )
        self._counts_before = SampledReadCounts()
        """The counts when this epoch began."""
        self._all_drawn = False
        """Whether the sampler has given all batches of this epoch."""

    @property
    def incomplete(self) -> Sequence[PenstockError]:
        """The samples that lack a part."""
        return self._shards.incomplete

    @property
    def whole_samples(self) -> int:
        """The samples that have all parts."""
        return self._shards.whole_samples

    @property
    def filtered(self) -> int:
        """Samples that a filter of the user has rejected."""
        return self._shards.filtered

    @property
    def marks_padding(self) -> bool:
        """Whether batches are dicts of fields."""
        return self._shards.marks_padding

    @property
    def runs_user_code(self) -> bool:
        """Whether workers run code of the user."""
        return self._shards.runs_user_code

    def __len__(self) -> int:
        return len(self._shards.sample_index)

    def num_batches(self) -> int:
        """Return the number of batches in an epoch on this rank."""
        return self._batch_order.num_batches()

    def samples_per_rank(self) -> int:
        """Return the number of samples in an epoch on this rank."""
        return sum(len(request.samples) for request in self.batch_requests(0, 0))

    def batch_requests(self, epoch: int, position: int, order: Order | None = None) -> Iterator[BatchRequest]:
        """Yield the sampler's batches of the epoch from that position on, by the samples' own numbers."""
        return self._batch_order.batch_requests(epoch, position, dict(order or {}))

    def begin_epoch(self, epoch: int, position: int, order: Order | None = None) -> EpochRequest:
        """Decide whether workers read, and return the epoch's batches; the sampler is iterated only as they are."""
        self._counts_before, self._all_drawn = self.block_source.counts, False
        self.block_source.choose_readers()
        order = dict(order or {})
        requests = self._picked(self._batch_order.batch_requests(epoch, position, order))
        return EpochRequest(requests, self.block_source.block_uses, self.block_source.worker_read_bytes, order)

    def _picked(self, requests: Iterator[BatchRequest]) -> Iterator[BatchRequest]:
        """Yield the batches with picks as samples. A pick's random draws are seeded by its position in the epoch."""
        for request in requests:
            begin = request.end - len(request.samples)
            picks = self.block_source.add_batch(request.samples, begin)
            one_worker = self._shards.functions.collate_fn is not None
            yield replace(request, samples=picks, rng_ids=np.arange(begin, request.end), one_worker=one_worker)
        self._all_drawn = True

    def next_order(self) -> Order:
        """Return the state of the sampler, if it has one."""
        return self._batch_order.next_order()

    def warn_if_unrepeatable(self) -> None:
        """Log a warning if the sampler's order cannot be repeated."""
        self._batch_order.warn_if_unrepeatable()

    def read_sizes(self) -> ReadSizes:
        """Return sizes for blocks of a few samples, of as many neighbours as `block_bytes` holds, or of a long one."""
        samples = self.block_source.wanted_bytes
        blocks = np.minimum(MAX_BLOCK_READS * samples, np.maximum(samples, self._block_bytes))
        blocks_per_batch = -(-self._batch_size // MAX_BLOCK_READS)
        return ReadSizes(np.append(blocks, self._block_bytes), BATCHES_IN_MEMORY * blocks_per_batch)

    def slab_layout(self, batch_size: int) -> SlabLayout:
        """Return the layout of a batch, inferred from the first samples."""
        return self._shards.slab_layout(batch_size)

    def worker_program(self, layout: SlabLayout) -> WorkerProgram:
        """Return what workers run."""
        return self._shards.worker_program_with(self.block_source.worker_files(), layout)

    def location(self, sample: int, suffix: str | None = None) -> tuple[str, str, int]:
        """Return shard, member and offset of that part of a pick."""
        return self._shards.location(int(self.block_source.sample_numbers(np.array([sample]))[0]), suffix)

    def assemble(self, values: dict[str, Any], samples: Ids) -> Any:
        """Return the fields and the samples' keys, and note that these picks are delivered."""
        batch = self._shards.assemble(values, self.block_source.sample_numbers(samples))
        self.block_source.mark_delivered(samples)
        if self._all_drawn and not self.block_source.undelivered_batches:
            counts = self.block_source.counts.since(self._counts_before)
            log.info("read by a sampler, %s", self._read_summary(counts))
        return batch

    def _read_summary(self, read: SampledReadCounts) -> str:
        """Say how much a batch in the sampler's order reads, and how many reads the shards' own order would need."""
        batches = max(1, read.batches)
        own_blocks = len(self._shards.block_source.blocks) * read.samples / len(self)
        return (
            f"each of {read.batches:,} batches: {read.samples / batches:.3g} samples in {read.reads / batches:.3g} "
            f"reads of {format_bytes(read.bytes_read / max(1, read.reads))}, {format_bytes(read.bytes_read / batches)} "
            f"for {format_bytes(read.bytes_wanted / batches)} that are wanted; in the shards' own order "
            f"{own_blocks / batches:.2g} reads"
        )

    def identity(self) -> dict[str, str | int | bool]:
        """Return the shards' fingerprint, and what can be known of the sampler."""
        fingerprint = self._shards.identity()["fingerprint"]
        return {"kind": "picked", "fingerprint": fingerprint, **self._batch_order.identity()}

    def __repr__(self) -> str:
        """Describe the shards, and what a batch has cost so far."""
        read = self.block_source.counts
        return f"{self._shards!r} by a sampler" + (f" ({self._read_summary(read)})" if read.batches else "")

    def close(self) -> None:
        """Close the shards."""
        self.block_source.close()
        self._shards.close()

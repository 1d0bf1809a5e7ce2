"""Shards whose order is the user's: a sampler or a batch_sampler says which sample comes when."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import WorkerProgram
from penstock.core.format import format_bytes
from penstock.core.slab_layout import SlabLayout
from penstock.data.order.batches import BatchIndices
from penstock.data.order.sampler import BatchOrder
from penstock.data.read.sampled_read import MOST_READS, SampledBlockSource, SampledBlockTable
from penstock.data.sources.base import EpochShare, ReadSizes
from penstock.data.sources.shards import UNDER_WAY, ShardSource

log = logging.getLogger("penstock")

Ids = NDArray[np.int64]


class SampledShardSource:
    """What a sample is, is for the shards' own feed to say; only where it is read, and when, is decided here."""

    def __init__(self, shards: ShardSource, picks: BatchOrder, batch_size: int) -> None:
        """`batch_size` is what a batch usually has; where a batch_sampler decides, a guess."""
        self._shards = shards
        self._picks = picks
        self._batch_size = batch_size
        self._block_bytes = shards.order_settings.block_bytes
        self.supply = SampledBlockSource(
            shards.dataset, self._block_bytes, direct=not shards.page_cache, cache=shards.cache
        )
        self._before = SampledBlockTable()
        """When this epoch began."""
        self._all_drawn = False

    @property
    def own_code(self) -> bool:
        """Whether workers run nothing of the user's."""
        return self._shards.own_code

    def __len__(self) -> int:
        return len(self._shards.dataset)

    def count(self) -> int:
        """Batches of an epoch on this rank."""
        return self._picks.count()

    def per_rank(self) -> int:
        """Samples of an epoch on this rank."""
        return sum(len(portion.samples) for portion in self.portions(0, 0))

    def portions(self, epoch: int, position: int) -> Iterator[BatchIndices]:
        """The sampler's batches of the epoch from that position on."""
        return self._picks.portions(epoch, position)

    def share(self, epoch: int, position: int) -> EpochShare:
        """The same, to be delivered now, drawn as far as anybody asks for it."""
        self._before, self._all_drawn = self.supply.counted, False
        self.supply.look()
        return EpochShare(
            self._drawn(self.portions(epoch, position)),
            self.supply.uses,
            worker_read_bytes=self.supply.worker_read_bytes,
        )

    def _drawn(self, portions: Iterator[BatchIndices]) -> Iterator[BatchIndices]:
        for portion in portions:
            samples = portion.samples
            yield BatchIndices(self.supply.draw(samples, portion.end - len(samples)), portion.end)
        self._all_drawn = True

    def reading(self) -> ReadSizes:
        """A block is a few samples, or as many neighbours as `block_bytes` hold, or one long sample."""
        samples = self.supply.wanted_bytes
        blocks = np.minimum(MOST_READS * samples, np.maximum(samples, self._block_bytes))
        return ReadSizes(np.append(blocks, self._block_bytes), UNDER_WAY * -(-self._batch_size // MOST_READS))

    def layout(self, batch_size: int) -> SlabLayout:
        """As the first samples have it."""
        return self._shards.layout(batch_size)

    def work(self, layout: SlabLayout) -> WorkerProgram:
        """What workers run."""
        return replace(self._shards.work(layout), files=self.supply.straight_files())

    def where(self, sample: int, suffix: str | None = None) -> tuple[str, str, int]:
        """Shard, name and offset of that part of a pick."""
        return self._shards.where(int(self.supply.own_numbers(np.array([sample]))[0]), suffix)

    def finish(self, values: dict[str, Any], samples: Ids) -> dict[str, Any]:
        """The fields, and the samples' keys."""
        batch = self._shards.finish(values, self.supply.own_numbers(samples))
        self.supply.deliver(samples)
        if self._all_drawn and not self.supply.waiting:
            log.info("read by a sampler, %s", self._told(self.supply.counted.since(self._before)))
        return batch

    def _told(self, read: SampledBlockTable) -> str:
        """What the sampler's order costs, and what the shards' own would."""
        batches = max(1, read.batches)
        own_blocks = len(self._shards.supply.blocks) * read.samples / len(self)
        return (
            f"each of {read.batches:,} batches: {read.samples / batches:.3g} samples in {read.reads / batches:.3g} "
            f"reads of {format_bytes(read.bytes_read / max(1, read.reads))}, {format_bytes(read.bytes_read / batches)} "
            f"for {format_bytes(read.bytes_wanted / batches)} that are wanted; in the shards' own order "
            f"{own_blocks / batches:.2g} reads"
        )

    def identity(self) -> dict[str, str | int | bool]:
        """The shards, and what can be known of the sampler."""
        return {"kind": "picked", "fingerprint": self._shards.identity()["fingerprint"], **self._picks.identity()}

    def __repr__(self) -> str:
        """With what a batch has cost so far."""
        read = self.supply.counted
        return f"{self._shards!r} by a sampler" + (f" ({self._told(read)})" if read.batches else "")

    def close(self) -> None:
        """Close the shards."""
        self.supply.close()
        self._shards.close()

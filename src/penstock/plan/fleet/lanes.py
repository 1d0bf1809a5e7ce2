"""How the order of an epoch must be cut so that many ranks can share it."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from penstock.data.order.blocks import BLOCK_BYTES
from penstock.data.order.shuffle import LANES

ENOUGH_BLOCKS = 4
"""In a lane, per epoch: lanes run out within one block of each other, and with fewer that is a large part of each."""
LEAST_BLOCK_BYTES = 64 << 10
"""Smaller reads cost their latency rather than their bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePlan:
    """For penstock.Loader; the number of ranks must divide the lanes."""

    lanes: int
    block_bytes: int
    """That of the loader, or less where the dataset has too few of them."""
    blocks: int | None
    """In the dataset; None where its size is not known."""
    enough: bool
    """Whether every lane has its blocks."""
    least_bytes: int
    """Of a dataset that has enough blocks of the usual size."""
    shards: int
    """At least: then no two ranks need read the same file at once."""
    packed_shards: int
    """At least, where shards are compressed: such a shard is one block."""
    rank_bytes: int
    """Of blocks in use in each rank's memory, twice: one is read while the other is used up."""


def lanes_for(ranks: int, dataset_bytes: float | None) -> LanePlan:
    """The smallest number of lanes that these ranks can share, and blocks for each."""
    lanes = ranks * ceil(LANES / ranks)
    block_bytes = _block_bytes(lanes, dataset_bytes)
    blocks = None if dataset_bytes is None else int(dataset_bytes // block_bytes)
    return LanePlan(
        lanes=lanes,
        block_bytes=block_bytes,
        blocks=blocks,
        enough=blocks is None or blocks >= ENOUGH_BLOCKS * lanes,
        least_bytes=ENOUGH_BLOCKS * lanes * BLOCK_BYTES,
        shards=ranks,
        packed_shards=ENOUGH_BLOCKS * lanes,
        rank_bytes=2 * lanes // ranks * block_bytes,
    )


def _block_bytes(lanes: int, dataset_bytes: float | None) -> int:
    """Halved until there are enough, but not without end."""
    size = BLOCK_BYTES
    while dataset_bytes is not None and dataset_bytes < ENOUGH_BLOCKS * lanes * size and size > LEAST_BLOCK_BYTES:
        size //= 2
    return size

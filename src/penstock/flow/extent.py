"""A run of bytes of a shard, and where in a block's memory it goes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Extent:
    """A run of bytes of a shard and its place in the block's memory, which is as far into a page as the offset is."""

    offset: int
    length: int
    at: int

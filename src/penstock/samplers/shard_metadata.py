"""Metadata of shards without decoding a picture: from the keys, or from one small part of every sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from penstock.core.slab_layout import SlabLayout
from penstock.data.decode.decoder import Decoder
from penstock.data.fields import Json
from penstock.data.read.block_source import ShardBlockSource
from penstock.data.read.sample_index import make_sample_index
from penstock.data.sources.shards import ShardSource
from penstock.errors import PenstockError, SampleError
from penstock.shards.scan import SCAN_THREADS

_ROW = "row"


def feed_of(dataset: Any) -> ShardSource | None:
    """What a ShardDataset reads from; None for any other dataset."""
    feed = getattr(dataset, "feed", None)
    return feed if isinstance(feed, ShardSource) else None


def part_rows(feed: ShardSource, suffix: str) -> list[Any]:
    """What the JSON part of every sample holds: of the shards, only these parts and small gaps between are read."""
    known = feed.sample_index
    parts = make_sample_index(known.paths, known.indexes, known.numbers, [(suffix,)])
    block_source = ShardBlockSource(parts, feed.order_settings.block_bytes)
    decoder = Decoder({_ROW: Json(suffix)}, SlabLayout({}, 1), seed=0)
    try:
        with ThreadPoolExecutor(SCAN_THREADS) as pool:
            blocks = pool.map(partial(_read, block_source, decoder), range(len(block_source.blocks)))
            return [row for block in blocks for row in block]
    finally:
        block_source.close()


def key_rows(feed: ShardSource, function: Callable[[str], Mapping[str, Any]]) -> list[Any]:
    """What the function makes of every key."""
    rows = []
    for sample, key in enumerate(feed.sample_index.keys(np.arange(len(feed.sample_index)))):
        try:
            rows.append(function(key))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise SampleError(reason, stage="metadata", **place(feed, sample)) from error
    return rows


def place(feed: ShardSource, sample: int) -> dict[str, Any]:
    """Where a sample lies, as errors say it."""
    shard, member, offset = feed.location(sample)
    return {"shard": shard, "member": member, "offset": offset}


def _read(block_source: ShardBlockSource, decoder: Decoder, block: int) -> list[Any]:
    memory = memoryview(bytearray(block_source.block_bytes(block)))
    block_source.read_block(block, memory)
    first, end = block_source.blocks.first_samples[block : block + 2].tolist()
    samples = np.arange(first, end)
    zeros = np.zeros_like(samples)
    rows = []
    for sample, row in enumerate(block_source.task_rows(samples, zeros, zeros).tolist(), first):
        try:
            rows.append(decoder.sample(row, 0, memory)[_ROW])
        except PenstockError as error:
            shard, error.member, offset = block_source.sample_index.location(sample, error.member)
            raise error.at(shard=shard, offset=offset) from None
    return rows

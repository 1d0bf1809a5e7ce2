"""Checks that reading a shard with all JPEGs before all NPZs gives complete samples in bounded memory."""

from __future__ import annotations

import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.result import Line
from benchmarks.sparse_shard import sparse_shard
from penstock.shards.pack.sources import PackSource, read_samples
from penstock.shards.scan import scan_shard

PARTS = ((".jpg", 600_000), ("_features.npz", 1_730_000))
SAMPLES = 1500
TARGET = 1.0
HELD_SAMPLES = 3
"""Samples in memory at once: the current one, the one before it, and one that is being read."""


def measure() -> Iterator[Line]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "grouped.tar"
        sparse_shard(path, ((f"sa_{number:06d}{suffix}", size) for suffix, size in PARTS for number in range(SAMPLES)))
        tracemalloc.start()
        index = scan_shard(path)
        selection = PackSource(str(path), False, index, np.arange(len(index)), []).select(range(len(index)))
        index_bytes = tracemalloc.get_traced_memory()[0]
        complete = sum(isinstance(parts, list) and len(parts) == len(PARTS) for _, parts in read_samples(selection))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert complete == SAMPLES
    sample_bytes = sum(size for _, size in PARTS)
    bound = index_bytes + HELD_SAMPLES * sample_bytes
    yield Line(
        f"pair {SAMPLES} samples of a grouped shard ({SAMPLES * sample_bytes / 1e9:.1f} GB)",
        f"peak {peak / 1e6:.1f} MB, all {complete} complete",
        f"index + {HELD_SAMPLES} samples: {bound / 1e6:.1f} MB",
        peak / bound,
        TARGET,
        "at most",
    )

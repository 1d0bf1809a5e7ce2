"""Shards for the GPU benchmarks: a few generated samples under many keys, in shards under several file names.

A GPU takes thousands of samples per second, and generating as many different ones would take minutes. The work of a
loader does not depend on whether it has read the same bytes before, as long as the files are in the page cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from benchmarks.peers.kinds import Kind
from penstock.shards.codecs.arrays import decode_npz, encode_npy
from penstock.shards.codecs.images import shrink_jpeg
from penstock.shards.pack.convert import array_suffix
from penstock.shards.scan import index_shard
from penstock.testing import sample_parts, tar_bytes

Parts = dict[str, bytes]
"""The parts of one sample, by suffix."""


@dataclass(frozen=True)
class Amount:
    """The size of a set of shards."""

    distinct: int
    """Different samples; they repeat under other keys."""
    per_shard: int
    """Samples in each shard."""
    shards: int
    """Different shards."""
    names: int
    """File names of each shard: hard links to one file."""


def make_parts(kind: Kind, count: int) -> list[Parts]:
    """Generate different samples, on all cores."""
    with ProcessPoolExecutor() as pool:
        return list(pool.map(partial(sample_parts, kind.preset), range(count), chunksize=4))


def packed(parts: Parts) -> Parts:
    """Convert an SA-1B-like sample as `penstock shards pack` does: image at training size, arrays uncompressed."""
    arrays = decode_npz(memoryview(parts["_features.npz"]), ("features", "edge"))
    stored = {array_suffix("_features.npz", name, "raw"): encode_npy(array) for name, array in arrays.items()}
    return {".jpg": shrink_jpeg(parts[".jpg"], 1024, "long", 90), **stored}


def arrays(count: int) -> list[Parts]:
    """Return images as raw arrays, which need no decoding, so that only reading and copying are measured."""
    rng = np.random.default_rng(0)
    return [{".npy": encode_npy(rng.integers(0, 255, (3, 1024, 1024), np.uint8))} for _ in range(count)]


def write_shards(folder: Path, samples: Iterable[Parts], amount: Amount) -> list[str]:
    """Write shards in which these samples repeat, index them and return their paths."""
    folder.mkdir(parents=True)
    repeated = cycle(samples)
    paths = []
    for shard in range(amount.shards):
        members = [
            (f"{shard:03d}{number:05d}{suffix}", data)
            for number, parts in enumerate(islice(repeated, amount.per_shard))
            for suffix, data in parts.items()
        ]
        first = folder / f"{shard:03d}-000.tar"
        first.write_bytes(tar_bytes(members))
        links = [folder / f"{shard:03d}-{name:03d}.tar" for name in range(1, amount.names)]
        for link in links:
            os.link(first, link)
        paths += [first, *links]
    for path in paths:
        index_shard(str(path))
    return list(map(str, paths))

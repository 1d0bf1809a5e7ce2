"""Shards for a GPU's appetite: a few pictures, made once, under many keys, and shards under several names.

A card takes thousands of samples a second. So many different ones would take minutes to make; what a loader does with
a sample does not depend on whether it has seen the same bytes before, as long as the files are in memory.
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


@dataclass(frozen=True)
class Amount:
    distinct: int
    per_shard: int
    shards: int
    names: int
    """Of each shard: links to one file."""


def make_parts(kind: Kind, count: int) -> list[Parts]:
    """Different samples, on all cores."""
    with ProcessPoolExecutor() as cores:
        return list(cores.map(partial(sample_parts, kind.preset), range(count), chunksize=4))


def packed(parts: Parts) -> Parts:
    """As `penstock shards pack` leaves an SA-1B-like sample: the picture at training size, arrays raw."""
    arrays = decode_npz(memoryview(parts["_features.npz"]), ("features", "edge"))
    stored = {array_suffix("_features.npz", name, "raw"): encode_npy(array) for name, array in arrays.items()}
    return {".jpg": shrink_jpeg(parts[".jpg"], 1024, "long", 90), **stored}


def arrays(count: int) -> list[Parts]:
    """Pictures as raw arrays: nothing to decode, everything to copy."""
    rng = np.random.default_rng(0)
    return [{".npy": encode_npy(rng.integers(0, 255, (3, 1024, 1024), np.uint8))} for _ in range(count)]


def write(folder: Path, samples: Iterable[Parts], amount: Amount) -> list[str]:
    """Shards of these samples again and again, indexed."""
    folder.mkdir(parents=True)
    again = cycle(samples)
    paths = []
    for shard in range(amount.shards):
        members = [
            (f"{shard:03d}{number:05d}{suffix}", data)
            for number, parts in enumerate(islice(again, amount.per_shard))
            for suffix, data in parts.items()
        ]
        first = folder / f"{shard:03d}-000.tar"
        first.write_bytes(tar_bytes(members))
        others = [folder / f"{shard:03d}-{name:03d}.tar" for name in range(1, amount.names)]
        for other in others:
            os.link(first, other)
        paths += [first, *others]
    for path in paths:
        index_shard(str(path))
    return list(map(str, paths))

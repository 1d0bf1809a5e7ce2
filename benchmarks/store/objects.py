"""The objects of the store: raw arrays in tar shards, made once and kept in the user's cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.peers.data import once
from penstock.core.user_cache import cache_dir
from penstock.shards.codecs.arrays import encode_npy
from penstock.testing import tar_bytes

SHAPE = (32, 32, 64)
"""A sample of this shape in float16 has 128 KiB, about the size of a JPEG. Its decoding is only a copy, so that the
store is the limit and not the cores."""
DTYPE = "float16"
SAMPLE_BYTES = 2 * int(np.prod(SHAPE))
BUCKET = "bench"


@dataclass(frozen=True)
class Size:
    """A number of shards and of samples in each, and the batch size."""

    shards: int
    samples: int
    """Samples per shard."""
    batch_size: int

    @property
    def names(self) -> list[str]:
        return [f"{shard:03d}.tar" for shard in range(self.shards)]

    @property
    def keys(self) -> list[str]:
        return [key for shard in range(self.shards) for key in self.keys_of(shard)]

    def keys_of(self, shard: int) -> list[str]:
        return [f"{shard:03d}{sample:05d}" for sample in range(self.samples)]


FULL = Size(48, 512, 128)
"""3 GiB in shards of 64 MiB, an even share for 1, 2, 4, 8 and 16 workers."""
QUICK = Size(4, 64, 16)


def folder_of(size: Size) -> Path:
    """Return the folder with the bucket's content; make it if it is missing."""
    return once(cache_dir("bench") / f"store-{size.shards}x{size.samples}", partial(_make, size))


def samples_of(size: Size, shard: int) -> Iterator[tuple[str, bytes]]:
    """Yield the key and the array, as an NPY file, of each sample of a shard."""
    rng = np.random.default_rng(shard)
    for key in size.keys_of(shard):
        yield key, encode_npy(rng.integers(0, 1 << 14, SHAPE, np.uint16).view(DTYPE))


def _make(size: Size, folder: Path) -> None:
    folder.mkdir(parents=True)
    for shard, name in enumerate(size.names):
        members = ((f"{key}.npy", data) for key, data in samples_of(size, shard))
        (folder / name).write_bytes(tar_bytes(members))

"""The demo's folder, and the shards in it: SA-1B-like, smaller than the real ones, one batch in each."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import SettingError, ShardError
from penstock.shards.pack.options import PackOptions
from penstock.shards.pack.plan import make_plan
from penstock.shards.pack.run import pack
from penstock.shards.pack.sources import find_pack_sources
from penstock.shards.scan import index_shards
from penstock.testing import SA1B, make_shards

MARK = "made-by-penstock-demo"
TEACHERS_SIZE = 1024
"""Pixels of the longer side that go with the preset's features, at a scale of 1."""
PACKED_SHARD_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class DemoSize:
    """How much is made."""

    samples: int
    """At least: the last shard is filled up."""
    batch_size: int = 8
    scale: float = 0.5
    """Of the sides of pictures and feature maps; a sample of half the size costs a quarter."""

    @property
    def shards(self) -> int:
        """One batch in each."""
        return -(-self.samples // self.batch_size)

    @property
    def image_size(self) -> int:
        """The longer side that the training asks for."""
        return round(TEACHERS_SIZE * self.scale)


@dataclass(frozen=True, slots=True)
class ShardSet:
    """Some shards in a folder."""

    folder: Path
    shards: tuple[Path, ...]
    samples: int

    @property
    def size_bytes(self) -> int:
        """On disk."""
        return sum(shard.stat().st_size for shard in self.shards)

    @property
    def sample_bytes(self) -> float:
        """The same for each sample."""
        return self.size_bytes / self.samples


def clear(folder: Path) -> None:
    """Remove an earlier demo, and nothing else."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not (folder / MARK).exists():
            raise SettingError(f"{str(folder)!r} is not empty and not from a demo", advice="Give another --folder")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).touch()


def make(folder: Path, size: DemoSize) -> ShardSet:
    """All pictures of a shard before all its features: an order that other readers take for half samples."""
    samples = size.shards * size.batch_size
    shards = make_shards(folder, SA1B, samples=samples, shards=size.shards, order="grouped", scale=size.scale)
    return ShardSet(folder, tuple(shards), samples)


def index(shards: Sequence[Path]) -> int:
    """How many parts were paired to samples."""
    parts = 0
    for scanned in index_shards(shards, rebuild=True):
        if scanned.index is None:
            raise scanned.error or ShardError("cannot be indexed", shard=scanned.shard)
        parts += scanned.index.part_count
    return parts


def pack_for_training(lot: ShardSet, folder: Path, image_size: int) -> ShardSet:
    """Pictures at the size that the training asks for, arrays raw; in the same order."""
    options = PackOptions(arrays="raw", image_size=image_size, shard_bytes=PACKED_SHARD_BYTES)
    plan = make_plan(list(find_pack_sources(str(lot.folder), options)), options)
    reports = list(pack(plan, folder))
    return ShardSet(
        folder, tuple(sorted(folder / report.name for report in reports)), sum(each.samples for each in reports)
    )

"""The demo's folder and its shards: SA-1B-like, smaller than the real ones, with one batch in each shard."""

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

MARKER = "made-by-penstock-demo"
"""A file of this name shows that a folder is from a demo and may be removed."""
FULL_IMAGE_SIZE = 1024
"""Pixels of an image's longer side that correspond to the preset's feature maps at scale 1."""
PACKED_SHARD_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class DemoSize:
    """The amount of data that the demo makes."""

    samples: int
    """Least number of samples: the last shard is filled up."""
    batch_size: int = 8
    scale: float = 0.5
    """Factor on the sides of images and feature maps; at half the size a sample costs a quarter."""

    @property
    def shards(self) -> int:
        """Number of shards, with one batch in each."""
        return -(-self.samples // self.batch_size)

    @property
    def image_size(self) -> int:
        """Pixels of the longer side that the training requests."""
        return round(FULL_IMAGE_SIZE * self.scale)


@dataclass(frozen=True, slots=True)
class ShardSet:
    """The shards in a folder."""

    folder: Path
    paths: tuple[Path, ...]
    samples: int

    @property
    def size_bytes(self) -> int:
        """Size on disk."""
        return sum(path.stat().st_size for path in self.paths)

    @property
    def sample_bytes(self) -> float:
        """Mean size of a sample."""
        return self.size_bytes / self.samples


def clear_folder(folder: Path) -> None:
    """Make an empty folder; remove an earlier demo there, but refuse any other content."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not (folder / MARKER).exists():
            raise SettingError(
                f"{str(folder)!r} is not empty and not from a demo", advice="Give another folder with -o"
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).touch()


def make_demo_shards(folder: Path, size: DemoSize) -> ShardSet:
    """Make shards with all images before all features, an order in which some readers find only half samples."""
    samples = size.shards * size.batch_size
    paths = make_shards(folder, SA1B, samples=samples, shards=size.shards, order="grouped", scale=size.scale)
    return ShardSet(folder, tuple(paths), samples)


def index_parts(shards: Sequence[Path]) -> int:
    """Index the shards and return the number of their parts."""
    parts = 0
    for scanned in index_shards(shards, rebuild=True):
        if scanned.index is None:
            raise scanned.error or ShardError("cannot be indexed", shard=scanned.shard)
        parts += scanned.index.part_count
    return parts


def pack_for_training(shards: ShardSet, folder: Path, image_size: int) -> ShardSet:
    """Pack the shards with images of the training's size and raw arrays, in the same order."""
    options = PackOptions(arrays="raw", image_size=image_size, shard_bytes=PACKED_SHARD_BYTES)
    plan = make_plan(list(find_pack_sources(str(shards.folder), options)), options)
    packed = list(pack(plan, folder))
    return ShardSet(
        folder, tuple(sorted(folder / shard.name for shard in packed)), sum(each.samples for each in packed)
    )

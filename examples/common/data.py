"""Synthetic data: shards, and the same samples as loose files, which two of the reports' teams used."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from examples.common.settings import SEED, Settings
from penstock.testing import Preset, sample_parts, tar_bytes

Parts = dict[str, bytes]


def make_shards_once(folder: Path, preset: Preset, settings: Settings) -> Path:
    """Return the folder's shards; make them if there are none."""

    def make(into: Path) -> None:
        distinct = _distinct_samples(preset, settings)
        for shard in range(settings.shards):
            first, last = (settings.samples * number // settings.shards for number in (shard, shard + 1))
            members = _members(preset, distinct, range(first, last))
            (into / f"{preset.name}-{shard:06d}.tar").write_bytes(tar_bytes(members))

    return _once(folder / "shards", make)


def _distinct_samples(preset: Preset, settings: Settings) -> list[Parts]:
    """Make the distinct samples in threads, since encoding images and deflating arrays release the GIL."""
    make = partial(sample_parts, preset, scale=settings.scale)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(make, range(min(settings.distinct, settings.samples))))


def _members(preset: Preset, distinct: Sequence[Parts], numbers: range) -> Iterator[tuple[str, bytes]]:
    """Yield the members of a shard; images repeat with other names and notes, because making them takes long."""
    for number in numbers:
        rng = np.random.default_rng([SEED, number])
        notes = {spec.suffix: spec.write(number, rng).encode() for spec in preset.notes}
        for suffix, data in {**distinct[number % len(distinct)], **notes}.items():
            yield preset.key(number) + suffix, data


def loose_files(shards: Path) -> list[Path]:
    """Return the parts of all samples as files, sorted; unpack the shards if that was not done yet."""

    def unpack(into: Path) -> None:
        for shard in sorted(shards.glob("*.tar")):
            with tarfile.open(shard) as tar:
                tar.extractall(into, filter="data")

    return sorted(_once(shards.with_name("loose"), unpack).iterdir())


def _once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Make a folder unless it exists; an unfinished one has another name and is made again."""
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        unfinished.mkdir(parents=True, exist_ok=True)
        make(unfinished)
        unfinished.rename(folder)
    return folder

"""Made-up data: shards, and the same samples as loose files, as two of the reports' teams had them."""

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


def shards_in(folder: Path, preset: Preset, settings: Settings) -> Path:
    """Those that are there, or new ones."""

    def make(into: Path) -> None:
        known = _distinct(preset, settings)
        for shard in range(settings.shards):
            first, last = (settings.samples * place // settings.shards for place in (shard, shard + 1))
            members = _members(preset, known, range(first, last))
            (into / f"{preset.name}-{shard:06d}.tar").write_bytes(tar_bytes(members))

    return _once(folder / "shards", make)


def _distinct(preset: Preset, settings: Settings) -> list[Parts]:
    """Painting and deflating leave the interpreter's lock, so threads help."""
    make = partial(sample_parts, preset, scale=settings.scale)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(make, range(min(settings.distinct, settings.samples))))


def _members(preset: Preset, known: Sequence[Parts], numbers: range) -> Iterator[tuple[str, bytes]]:
    """Pictures come again after a while, under other names and with other notes: painting them takes its time."""
    for number in numbers:
        dice = np.random.default_rng([SEED, number])
        notes = {spec.suffix: spec.write(number, dice).encode() for spec in preset.notes}
        for suffix, data in {**known[number % len(known)], **notes}.items():
            yield preset.key(number) + suffix, data


def loose_files(shards: Path) -> list[Path]:
    """All parts of all samples, in order."""

    def unpack(into: Path) -> None:
        for shard in sorted(shards.glob("*.tar")):
            with tarfile.open(shard) as tar:
                tar.extractall(into, filter="data")

    return sorted(_once(shards.with_name("loose"), unpack).iterdir())


def _once(folder: Path, make: Callable[[Path], None]) -> Path:
    """What was left unfinished has another name, and is made again."""
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        unfinished.mkdir(parents=True, exist_ok=True)
        make(unfinished)
        unfinished.rename(folder)
    return folder

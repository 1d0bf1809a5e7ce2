"""Made-up data: shards, and the same samples as loose files, as two of the reports' teams had them."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

from examples.common.settings import Settings
from penstock.testing import Preset, make_shards


def shards_in(folder: Path, preset: Preset, settings: Settings) -> Path:
    """Those that are there, or new ones."""

    def make(into: Path) -> None:
        make_shards(into, preset, samples=settings.samples, shards=settings.shards, scale=settings.scale)

    return _once(folder / "shards", make)


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

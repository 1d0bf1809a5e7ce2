"""The shards that the loaders are compared on, kept in the user's cache, and their copies in the peers' formats."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.peers.kinds import SHARDS, Kind
from penstock.core.user_cache import cache_dir
from penstock.shards.pack.options import PackOptions
from penstock.shards.pack.plan import make_plan
from penstock.shards.pack.run import pack
from penstock.shards.pack.sources import find_pack_sources
from penstock.testing import make_shards

Parts = dict[str, bytes]
"""The parts of a sample by suffix."""

PACK = PackOptions(arrays="raw", image_size=1024, shard_bytes=128 << 20)


def shards_of(kind: Kind, quick: bool) -> list[str]:
    """Return the shards of a kind in order; make them if they are missing."""
    samples = kind.size(quick).samples
    folder = once(_folder(kind, quick), lambda out: make_shards(out, kind.preset, samples=samples, shards=SHARDS))
    return _tars(folder)


def packed_shards_of(kind: Kind, quick: bool) -> list[str]:
    """Return shards with the same samples after `penstock shards pack`: images at training size, arrays raw."""
    source = _folder(kind, quick)

    def make(out: Path) -> None:
        for _ in pack(make_plan(list(find_pack_sources(str(source), PACK)), PACK), out):
            pass

    shards_of(kind, quick)
    return _tars(once(source.with_name(source.name + "-packed"), make))


def converted(shards: list[str], name: str, convert: Callable[[Path], object]) -> Path:
    """Return the folder, beside that of the shards, with the same samples in a peer's own format."""
    folder = Path(shards[0]).parent
    return once(folder.with_name(f"{folder.name}-{name}"), convert)


def once(folder: Path, make: Callable[[Path], object]) -> Path:
    """Return the folder after calling `make`, unless it exists already.

    It is made under a temporary name and renamed at the end, so that a folder of this name is complete.
    """
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
        try:
            make(unfinished)
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def samples_in(kind: Kind, shard: str) -> Iterator[tuple[str, Parts]]:
    """Yield the key and the parts of every sample, with the standard library; a sample's parts must be adjacent."""
    parts: Parts = {}
    with tarfile.open(shard, "r:") as tar:
        for member in tar:
            key, suffix = kind.split(member.name)
            content = tar.extractfile(member)
            assert content is not None
            parts[suffix] = content.read()
            if len(parts) == len(kind.suffixes):
                yield key, parts
                parts = {}


def _folder(kind: Kind, quick: bool) -> Path:
    return cache_dir("bench") / f"{kind.preset.name}-{kind.size(quick).samples}-in-{SHARDS}"


def _tars(folder: Path) -> list[str]:
    return sorted(map(str, folder.glob("*.tar")))

"""The shards of a race, made once and kept in the user's cache; and what is made from them for those who need that."""

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
"""A sample's members by suffix."""

PACK = PackOptions(arrays="raw", image_size=1024, shard_bytes=128 << 20)


def shards_of(kind: Kind, quick: bool) -> list[str]:
    """The shards as they are, in order."""
    samples = kind.size(quick).samples
    folder = once(_folder(kind, quick), lambda out: make_shards(out, kind.preset, samples=samples, shards=SHARDS))
    return _tars(folder)


def packed_shards_of(kind: Kind, quick: bool) -> list[str]:
    """The same samples after `penstock shards pack`: pictures at training size, arrays raw."""
    source = _folder(kind, quick)

    def make(out: Path) -> None:
        for _ in pack(make_plan(list(find_pack_sources(str(source), PACK)), PACK), out):
            pass

    shards_of(kind, quick)
    return _tars(once(source.with_name(source.name + "-packed"), make))


def converted(shards: list[str], name: str, convert: Callable[[Path], object]) -> Path:
    """The same samples in a peer's own format, beside the shards."""
    folder = Path(shards[0]).parent
    return once(folder.with_name(f"{folder.name}-{name}"), convert)


def once(folder: Path, make: Callable[[Path], object]) -> Path:
    """A folder that is there has been made to its end: it gets its name last."""
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
        try:
            make(unfinished)
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def samples_in(kind: Kind, shard: str) -> Iterator[tuple[str, Parts]]:
    """The samples of a shard whose parts lie side by side, as the standard library reads them."""
    held: Parts = {}
    with tarfile.open(shard, "r:") as tar:
        for member in tar:
            key, suffix = kind.split(member.name)
            content = tar.extractfile(member)
            assert content is not None
            held[suffix] = content.read()
            if len(held) == len(kind.suffixes):
                yield key, held
                held = {}


def _folder(kind: Kind, quick: bool) -> Path:
    return cache_dir("bench") / f"{kind.preset.name}-{kind.size(quick).samples}-in-{SHARDS}"


def _tars(folder: Path) -> list[str]:
    return sorted(map(str, folder.glob("*.tar")))

"""From a shard to its index: the stored one if it is still true, else a walk over the headers."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from penstock.errors import IndexFileError, PenstockError, ShardError
from penstock.shards import indexfile
from penstock.shards.index import Binding, Opened, ShardIndex, build_index
from penstock.shards.source import compression_of, open_shard
from penstock.shards.tar import walk

log = logging.getLogger("penstock")

SCAN_THREADS = 8
"""A walk is one short read after another: threads hide the storage's latency, and the pages are read once."""


@dataclass(frozen=True, slots=True)
class Scanned:
    """What became of one shard: its index, or the error that kept it from having one."""

    shard: str
    index: ShardIndex | None
    error: PenstockError | None
    fresh: bool
    """Whether the headers were walked now, rather than read from a stored index."""


def scan(shard: str | os.PathLike[str], suffixes: Sequence[str] | None = None) -> ShardIndex:
    """Walk the headers now, whatever is stored."""
    path = os.fspath(shard)
    with open_shard(path) as source:
        members = walk(source, path)
        opened = Opened(Binding(source.size, source.mtime_ns), source.compression, source.end)
        if _binding(path) != opened.binding:
            raise ShardError(
                "changed while it was being indexed",
                shard=path,
                stage="scan",
                advice="Wait until it is written, then index it again.",
            )
    return build_index(members, opened, suffixes)


def index_of(shard: str | os.PathLike[str], *, rebuild: bool = False) -> ShardIndex:
    """The shard's index: stored and still true, or built now and stored."""
    return _indexed(os.fspath(shard), rebuild)[0]


def index_all(
    shards: Sequence[str | os.PathLike[str]], *, rebuild: bool = False, threads: int = SCAN_THREADS
) -> Iterator[Scanned]:
    """Index many shards side by side; results come as they are ready, errors as results."""
    paths = [os.fspath(shard) for shard in shards]
    with ThreadPoolExecutor(max_workers=max(1, min(threads, len(paths)))) as pool:
        futures = [pool.submit(_try, path, rebuild) for path in paths]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _try(path: str, rebuild: bool) -> Scanned:
    try:
        index, fresh = _indexed(path, rebuild)
    except PenstockError as error:
        return Scanned(path, None, error.at(shard=path), True)
    return Scanned(path, index, None, fresh)


def _indexed(path: str, rebuild: bool) -> tuple[ShardIndex, bool]:
    stored = None if rebuild else _stored(path)
    if stored is not None:
        return stored, False
    index = scan(path)
    try:
        indexfile.save(index, path)
    except OSError as error:
        log.warning("%s: index not stored: %s", path, error)
    return index, True


def _stored(path: str) -> ShardIndex | None:
    """The stored index if it describes the shard as it is now; a notice if it does not."""
    now = _binding(path)
    if now is None:
        return None  # the walk will say what is wrong
    try:
        index = indexfile.load(path, now)
    except IndexFileError as error:
        log.warning("%s; rebuilding it", error)
        return None
    if index is None:
        return None
    if index.binding != now or index.compression != compression_of(path):
        log.warning("%s: the shard has changed since it was indexed; rebuilding its index", path)
        return None
    return index


def _binding(path: str) -> Binding | None:
    """What the shard looks like now; None if it cannot be seen."""
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return Binding(facts.st_size, facts.st_mtime_ns)

"""From a shard to its index: the stored one if it is still true, else a walk over the headers."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace

import numpy as np

from penstock.core.process_lock import keyed_lock
from penstock.core.ranks import local_rank
from penstock.errors import IndexFileError, PenstockError, ShardError
from penstock.shards.index import IndexBinding, OpenedShard, ShardIndex, build_index, load_index, save_index
from penstock.shards.open_shard import AnyShard, RemoteShard, compression_from_name, open_shard
from penstock.shards.tar import ByteSource, walk_tar
from penstock.shards.tar_header import TAR_BLOCK, as_header_rows, checksums_match, decode_names
from penstock.storage.object_store.remote_file import HeaderReadahead, RemoteFile
from penstock.storage.object_store.request import ObjectVersion
from penstock.storage.object_store.url import is_remote

log = logging.getLogger("penstock")

SCAN_THREADS = 8
"""A walk is one short read after another: threads hide the storage's latency, and the pages are read once."""
REMOTE_THREADS = 32
"""The same for an object store, where a read selections tens of milliseconds and is mostly waiting."""


@dataclass(frozen=True, slots=True)
class ScannedShard:
    """What became of one shard: its index, or the error that kept it from having one."""

    shard: str
    index: ShardIndex | None
    error: PenstockError | None
    rebuilt: bool
    """Whether the headers were walked now, rather than read from a stored index."""


def scan_shard(shard: str | os.PathLike[str], suffixes: Sequence[str] | None = None) -> ShardIndex:
    """Walk the headers now, whatever is stored."""
    path = os.fspath(shard)
    with open_shard(path) as source:
        members = walk_tar(_header_reader(source), path)
        opened = OpenedShard(IndexBinding.of(source), source.compression, source.end)
        if (
            not is_remote(path) and _current_binding(path) != opened.binding
        ):  # a store has compared every request itself
            raise ShardError(
                "changed while it was being indexed",
                shard=path,
                stage="scan",
                advice="Wait until it is written, then index it again.",
            )
    return build_index(members, opened, suffixes)


def _header_reader(source: AnyShard) -> ByteSource:
    """As a walk should read it: from a store not header by header."""
    return HeaderReadahead(source.file) if isinstance(source, RemoteShard) else source


def index_shard(shard: str | os.PathLike[str], *, rebuild: bool = False) -> ShardIndex:
    """The shard's index: stored and still true, or built now and stored."""
    return _load_or_scan(os.fspath(shard), rebuild)[0]


def index_shards(
    shards: Sequence[str | os.PathLike[str]], *, rebuild: bool = False, threads: int | None = None
) -> Iterator[ScannedShard]:
    """Index many shards side by side; results come as they are ready, errors as results."""
    paths = _rotated_by_rank([os.fspath(shard) for shard in shards])
    threads = threads or (REMOTE_THREADS if any(map(is_remote, paths)) else SCAN_THREADS)
    with ThreadPoolExecutor(max_workers=max(1, min(threads, len(paths)))) as pool:
        futures = [pool.submit(_index_or_error, path, rebuild) for path in paths]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _rotated_by_rank(paths: list[str]) -> list[str]:
    """Ranks of one machine begin at different shards, and come to those that others have indexed by then."""
    here = local_rank()
    first = len(paths) * here.rank // here.world_size
    return paths[first:] + paths[:first]


def _index_or_error(path: str, rebuild: bool) -> ScannedShard:
    try:
        index, fresh = _load_or_scan(path, rebuild)
    except PenstockError as error:
        return ScannedShard(path, None, error.at(shard=path), True)
    return ScannedShard(path, index, None, fresh)


def _load_or_scan(path: str, rebuild: bool) -> tuple[ShardIndex, bool]:
    stored = None if rebuild else _load_current_index(path)
    if stored is not None:
        return stored, False
    if local_rank().world_size == 1:
        return _scan_and_save(path), True
    with keyed_lock("index", path):  # all ranks of this machine want it: one walks, the others find it stored
        stored = None if rebuild else _load_current_index(path)
        return (_scan_and_save(path), True) if stored is None else (stored, False)


def _scan_and_save(path: str) -> ShardIndex:
    index = scan_shard(path)
    _save_or_warn(index, path)
    return index


def _save_or_warn(index: ShardIndex, path: str) -> None:
    try:
        save_index(index, path)
    except OSError as error:
        log.warning("%s: index not stored: %s", path, error)


def _load_current_index(path: str) -> ShardIndex | None:
    """The stored index if it describes the shard as it is now; a notice if it does not."""
    now = _current_binding(path)
    if now is None:
        return None  # the walk will say what is wrong
    try:
        index = load_index(path, now)
    except IndexFileError as error:
        log.warning("%s; rebuilding it", error)
        return None
    if index is None:
        return None
    if is_remote(path) and may_describe(index, now) and (adopted := adopt_index(path, index, now)) is not None:
        _save_or_warn(adopted, path)
        return adopted
    if index.binding != now or index.compression != compression_from_name(path):
        log.warning("%s: the shard has changed since it was indexed; rebuilding its index", path)
        return None
    return index


def _current_binding(path: str) -> IndexBinding | None:
    """What the shard looks like now; None if it cannot be seen."""
    try:
        if is_remote(path):
            return IndexBinding.of(RemoteFile(path))
        facts = os.stat(path)
    except OSError:
        return None
    return IndexBinding(facts.st_size, facts.st_mtime_ns)


COMPARED_HEADERS = 16
"""Headers that are compared: the first, the last, and some between."""


def may_describe(index: ShardIndex, now: IndexBinding) -> bool:
    """Whether it speaks of a file that may have become this object."""
    made_elsewhere = index.binding.etag is None and index.binding != now
    plain = index.compression is None and index.crcs is not None and index.part_count > 0
    return made_elsewhere and plain and index.binding.size == now.size


def adopt_index(path: str, index: ShardIndex, now: IndexBinding) -> ShardIndex | None:
    """The index, bound to the object; None if the object's headers are not those that it speaks of."""
    by_offset = np.argsort(index.offsets, kind="stable")
    chosen = by_offset[np.unique(np.linspace(0, index.part_count - 1, COMPARED_HEADERS).astype(np.int64))].tolist()
    memory = memoryview(bytearray(len(chosen) * TAR_BLOCK))
    headers = [memory[number * TAR_BLOCK : (number + 1) * TAR_BLOCK] for number in range(len(chosen))]
    places = [(int(index.offsets[part]) - TAR_BLOCK, header) for part, header in zip(chosen, headers, strict=True)]
    if any(offset < 0 for offset, _ in places):
        return None
    RemoteFile(path, ObjectVersion(now.size, now.etag, now.mtime_ns)).read_ranges(places)
    same = all(_header_matches(index, part, bytes(header)) for part, header in zip(chosen, headers, strict=True))
    return replace(index, binding=now) if same else None


def _header_matches(index: ShardIndex, part: int, header: bytes) -> bool:
    """Name and length; a name too long for one header is not looked for."""
    sound = bool(checksums_match(as_header_rows(header))[0])
    length = header[124:135]
    return (
        sound
        and decode_names(as_header_rows(header))[0] == index.member_name(part)
        and length.isdigit()
        and int(length, 8) == index.lengths[part]
    )

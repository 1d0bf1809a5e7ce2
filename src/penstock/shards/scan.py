"""Get the index of a shard: the stored one if it describes the current version, else a new one from the tar headers.

`index_shard` and `index_shards` do this and store new indexes; `scan_shard` always reads the headers.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace

import numpy as np

from penstock.core.process_lock import keyed_lock
from penstock.core.ranks import local_rank
from penstock.errors import IndexFileError, PenstockError, ShardError, printable
from penstock.shards.index import IndexBinding, OpenedShard, ShardIndex, build_index, load_index, save_index
from penstock.shards.open_shard import AnyShard, RemoteShard, compression_from_name, open_shard
from penstock.shards.pairing import RequiredPart
from penstock.shards.tar import ByteSource, walk_tar
from penstock.shards.tar_header import TAR_BLOCK, as_header_rows, checksums_match, decode_names
from penstock.storage.object_store.remote_file import HeaderReadahead, RemoteFile
from penstock.storage.object_store.request import ObjectVersion
from penstock.storage.object_store.url import is_remote

log = logging.getLogger("penstock")

SCAN_THREADS = 8
"""Shards scanned at a time. A scan is one short read after another, so threads hide the latency of the storage."""
REMOTE_THREADS = 32
"""Shards scanned at a time in an object store, where a read takes tens of milliseconds and is mostly waiting."""


@dataclass(frozen=True, slots=True)
class ScannedShard:
    """The outcome for one shard: its index, or the error."""

    shard: str
    index: ShardIndex | None
    error: PenstockError | None
    rebuilt: bool
    """Whether the headers were read now, rather than a stored index."""


def scan_shard(shard: str | os.PathLike[str], stated: Sequence[RequiredPart] = ()) -> ShardIndex:
    """Build the index from the shard's headers, whatever is stored."""
    path = os.fspath(shard)
    with open_shard(path) as source:
        members = walk_tar(_header_reader(source), path)
        opened = OpenedShard(IndexBinding.of(source), source.compression, source.end)
        # For an object, the store has checked the version with every request.
        if not is_remote(path) and _current_binding(path) != opened.binding:
            raise ShardError(
                "changed while it was being indexed",
                shard=path,
                stage="scan",
                advice="Wait until it is written, then index it again.",
            )
    return build_index(members, opened, stated)


def _header_reader(source: AnyShard) -> ByteSource:
    """Return the source to read headers from: an object is read with readahead, not by a request per header."""
    return HeaderReadahead(source.file) if isinstance(source, RemoteShard) else source


def index_shard(shard: str | os.PathLike[str], *, rebuild: bool = False) -> ShardIndex:
    """Return the index of a shard: the stored one if it is current, else a new one, which is stored."""
    return _load_or_scan(os.fspath(shard), rebuild)[0]


def index_shards(
    shards: Sequence[str | os.PathLike[str]], *, rebuild: bool = False, threads: int | None = None
) -> Iterator[ScannedShard]:
    """Index many shards in threads; yield outcomes, errors included, as they become ready."""
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
    """Rotate the list so that ranks of one machine start at different shards, and later find indexes of the others."""
    local = local_rank()
    first = len(paths) * local.rank // local.world_size
    return paths[first:] + paths[:first]


def _index_or_error(path: str, rebuild: bool) -> ScannedShard:
    try:
        index, rebuilt = _load_or_scan(path, rebuild)
    except PenstockError as error:
        return ScannedShard(path, None, error.at(shard=path), True)
    return ScannedShard(path, index, None, rebuilt)


def _load_or_scan(path: str, rebuild: bool) -> tuple[ShardIndex, bool]:
    stored = None if rebuild else _load_current_index(path)
    if stored is not None:
        return stored, False
    if local_rank().world_size == 1:
        return _scan_and_save(path), True
    with keyed_lock("index", path):  # all ranks of this machine need it: one scans, the others find it stored
        stored = None if rebuild else _load_current_index(path)
        return (_scan_and_save(path), True) if stored is None else (stored, False)


def _scan_and_save(path: str) -> ShardIndex:
    index = scan_shard(path)
    _log_joined_words(index, path)
    save_or_warn(index, path)
    return index


MAX_LOGGED_WORDS = 100
"""Words of joined names that a process logs: more are no names that a person has given."""
_logged_words: set[str] = set()


def _log_joined_words(index: ShardIndex, path: str) -> None:
    """Log which words have joined names to samples by inference, each word once in this process."""
    for number, suffix in enumerate(index.suffixes):
        word = suffix.partition(".")[0]
        if word and word not in _logged_words and len(_logged_words) < MAX_LOGGED_WORDS:
            _logged_words.add(word)
            part = int(np.argmax(index.suffix_ids == number))
            name, key = index.member_name(part), index.keys[int(index.sample_ids[part])]
            log.info("%s: %s is read as a part of sample %s", printable(path), printable(name), printable(key))


def save_or_warn(index: ShardIndex, path: str) -> None:
    """Store the index; log a warning if that is impossible, since an index is never needed."""
    try:
        save_index(index, path)
    except OSError as error:
        log.warning("%s: index not stored: %s", printable(path), error)


def _load_current_index(path: str) -> ShardIndex | None:
    """Return the stored index if it describes the current version of the shard; log a warning if it does not."""
    current = _current_binding(path)
    if current is None:
        return None  # the scan will report the reason
    try:
        index = load_index(path, current)
    except IndexFileError as error:
        log.warning("%s; rebuilding it", error)
        return None
    if index is None:
        return None
    if is_remote(path) and may_describe(index, current) and (adopted := adopt_index(path, index, current)) is not None:
        save_or_warn(adopted, path)
        return adopted
    if index.binding != current or index.compression != compression_from_name(path):
        log.warning("%s: the shard has changed since it was indexed; rebuilding its index", printable(path))
        return None
    return index


def _current_binding(path: str) -> IndexBinding | None:
    """Return the binding of the shard's current version; None if it cannot be inspected."""
    try:
        if is_remote(path):
            return IndexBinding.of(RemoteFile(path))
        status = os.stat(path)
    except OSError:
        return None
    return IndexBinding(status.st_size, status.st_mtime_ns)


# -- indexes that were uploaded together with their shard --------------------------------------------------------------

COMPARED_HEADERS = 16
"""Headers compared before an uploaded index is used: the first, the last, and some between."""


def may_describe(index: ShardIndex, current: IndexBinding) -> bool:
    """Return whether an index of a local file may describe an object that the file was uploaded as."""
    of_other_version = index.binding.etag is None and index.binding != current
    plain = index.compression is None and index.crcs is not None and index.part_count > 0
    return of_other_version and plain and index.binding.size == current.size


def adopt_index(path: str, index: ShardIndex, current: IndexBinding) -> ShardIndex | None:
    """Return the index, bound to the object; None if the object's headers are not those that the index describes."""
    by_offset = np.argsort(index.offsets, kind="stable")
    parts = by_offset[np.unique(np.linspace(0, index.part_count - 1, COMPARED_HEADERS).astype(np.int64))].tolist()
    memory = memoryview(bytearray(len(parts) * TAR_BLOCK))
    headers = [memory[number * TAR_BLOCK : (number + 1) * TAR_BLOCK] for number in range(len(parts))]
    reads = [(int(index.offsets[part]) - TAR_BLOCK, header) for part, header in zip(parts, headers, strict=True)]
    if any(offset < 0 for offset, _ in reads):
        return None
    RemoteFile(path, ObjectVersion(current.size, current.etag, current.mtime_ns)).read_ranges(reads)
    same = all(_header_matches(index, part, bytes(header)) for part, header in zip(parts, headers, strict=True))
    return replace(index, binding=current) if same else None


def _header_matches(index: ShardIndex, part: int, header: bytes) -> bool:
    """Compare name and length; a name too long for one header never matches."""
    sound = bool(checksums_match(as_header_rows(header))[0])
    length = header[124:135]
    return (
        sound
        and decode_names(as_header_rows(header))[0] == index.member_name(part)
        and length.isdigit()
        and int(length, 8) == index.lengths[part]
    )

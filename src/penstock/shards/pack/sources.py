"""The sources of a pack: shards, or a folder of loose files that is indexed as if it were one shard."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import deflate
import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import Part, Sample
from penstock.errors import DecodeError, PenstockError, SettingError, ShardError, StorageError
from penstock.shards.index import IndexBinding, OpenedShard, ShardIndex, build_index
from penstock.shards.open_shard import AnyShard, RemoteShard, open_shard
from penstock.shards.pack.options import PackOptions
from penstock.shards.scan import index_shards
from penstock.shards.tar import TarMembers
from penstock.shards.validate import ShardProblem, complete_samples
from penstock.storage.paths import expand_shard_paths, is_shard_name

MAX_PENDING_BYTES = 1 << 30
"""A compressed shard can only be read forward, so parts are held in memory until their sample is complete: at most this
many bytes."""


@dataclass(frozen=True)
class PackSource:
    """A shard or a folder, with its index."""

    path: str
    is_folder: bool
    index: ShardIndex
    complete: NDArray[np.int64]
    """Numbers of the complete samples."""
    problems: list[ShardProblem]
    """The problems of the incomplete samples, and of members that are not files."""

    @property
    def splittable(self) -> bool:
        """Whether several tasks may share the source; a compressed shard can only be read from its start, by one."""
        return self.index.compression is None

    def select(self, numbers: Iterable[int], prefix: str = "") -> SampleSelection:
        """Return the samples with these numbers, for a task."""
        samples = tuple(self.index.sample(number) for number in numbers)
        return SampleSelection(self.path, self.is_folder, not self.splittable, self.index.binding, prefix, samples)


@dataclass(frozen=True, slots=True)
class SampleSelection:
    """Some samples of one source. A task consists of selections; they are small and can be pickled."""

    path: str
    is_folder: bool
    sequential: bool
    """Whether the source can only be read from its start, since it is compressed."""
    binding: IndexBinding
    """The version of the source that was indexed."""
    prefix: str
    """Prefix for every key; empty unless another source has a key in common with this one."""
    samples: tuple[Sample, ...]


ReadSample = tuple[Sample, list[tuple[str, bytes]] | PenstockError]
"""A sample with (suffix, bytes) of each part, or with the error that makes it bad."""


def find_pack_sources(src: str, options: PackOptions) -> Iterator[PackSource]:
    """Yield the shards that `src` names, or the folder itself if it holds loose files."""
    path = Path(src)
    if path.is_dir() and not any(is_shard_name(name) for name in os.listdir(path)):
        yield _make_source(src, True, _index_folder(path), options)
        return
    shards = expand_shard_paths(src)
    sources: dict[str, PackSource] = {}
    for scanned in index_shards(shards):
        if scanned.index is None:
            raise scanned.error or ShardError("cannot be indexed", shard=scanned.shard)
        sources[scanned.shard] = _make_source(scanned.shard, False, scanned.index, options)
    yield from (sources[shard] for shard in shards)


def _make_source(path: str, is_folder: bool, index: ShardIndex, options: PackOptions) -> PackSource:
    index = index.paired_by(options.require)
    return PackSource(path, is_folder, index, *complete_samples(index, path, options.require, options.on_bad))


def _index_folder(root: Path) -> ShardIndex:
    """Index loose files as if they were the members of one shard, named by their relative paths, all at offset 0."""
    members = TarMembers()
    newest = 0
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = os.path.join(folder, name)
            if name.startswith(".") or not os.path.isfile(path):
                continue
            status = os.stat(path)
            members.names.append(_member_name(os.path.relpath(path, root)))
            members.offsets.append(0)
            members.lengths.append(status.st_size)
            newest = max(newest, status.st_mtime_ns)
    if not members.names:
        raise SettingError(f"nothing to pack in folder {str(root)!r}")
    total = sum(members.lengths)
    return build_index(members, OpenedShard(IndexBinding(total, newest), None, total))


def _member_name(path: str) -> str:
    """Return the member name of a loose file; raise if the name is not valid UTF-8 or the file is a shard itself."""
    if is_shard_name(path):
        raise SettingError(
            f"there are shards deeper in this folder, such as {path!r}",
            advice="Name the shards themselves: 'FOLDER/**/*.tar'.",
        )
    try:
        path.encode()
    except UnicodeEncodeError:
        raise SettingError(
            f"file name {os.fsencode(path)!r} is not UTF-8", advice="Rename it, for example with convmv."
        ) from None
    return path.replace(os.sep, "/")


def read_samples(selection: SampleSelection) -> Iterator[ReadSample]:
    """Yield each sample with the bytes of its parts, or with the error that makes it bad.

    Errors of the storage are raised instead: the sample itself may be sound, and must not be left out for them.
    """
    if selection.is_folder:
        return _read_files(selection)
    return _read_in_order(selection) if selection.sequential else _read_at_offsets(selection)


def _read_at_offsets(selection: SampleSelection) -> Iterator[ReadSample]:
    """Read the samples of a plain shard; parts that arrive damaged from an object store are read once more."""
    with _open_unchanged(selection) as shard:
        for sample in selection.samples:
            parts = [(part.suffix, shard.read_at(part.offset, part.length)) for part in sample.parts]
            if isinstance(shard, RemoteShard) and any(map(_damage, sample.parts, (data for _, data in parts))):
                parts = [(part.suffix, shard.reread(part.offset, part.length)) for part in sample.parts]
            try:
                _verify(selection.path, sample, parts)
            except DecodeError as error:
                yield sample, error
            else:
                yield sample, parts


def _read_files(selection: SampleSelection) -> Iterator[ReadSample]:
    """Read the samples of a folder of loose files."""
    for sample in selection.samples:
        try:
            parts = [(part.suffix, _read_file(selection.path, sample.key + part.suffix)) for part in sample.parts]
            _verify(selection.path, sample, parts)
        except DecodeError as error:
            yield sample, error
        else:
            yield sample, parts


def _read_file(root: str, name: str) -> bytes:
    """Return the bytes of a loose file.

    A missing file makes its sample bad (DecodeError) if the folder still exists; all else is an error of the storage.
    """
    try:
        return Path(root, name).read_bytes()
    except OSError as error:
        if isinstance(error, FileNotFoundError) and os.path.isdir(root):
            raise DecodeError("no longer exists", shard=root, member=name, stage="read") from error
        raise StorageError(f"cannot read: {error.strerror}", shard=root, member=name, stage="read") from error


def _open_unchanged(selection: SampleSelection) -> AnyShard:
    """Open the shard; raise if it is another version than the one indexed, for which the offsets would be wrong."""
    shard = open_shard(selection.path)
    if IndexBinding.of(shard) != selection.binding:
        shard.close()
        raise ShardError(
            "changed since it was indexed",
            shard=selection.path,
            stage="read",
            advice="Do not change the sources while they are packed, and start again.",
        )
    return shard


def _read_in_order(selection: SampleSelection) -> Iterator[ReadSample]:
    """Read a compressed shard forward; yield each sample when its last part has been read."""
    by_offset = sorted(
        ((part.offset, number, part) for number, sample in enumerate(selection.samples) for part in sample.parts),
        key=lambda entry: entry[:2],
    )
    pending: dict[int, list[tuple[str, bytes]]] = {}
    pending_bytes = 0
    with _open_unchanged(selection) as shard:
        for offset, number, part in by_offset:
            sample = selection.samples[number]
            parts = pending.setdefault(number, [])
            parts.append((part.suffix, shard.read_at(offset, part.length)))
            pending_bytes += part.length
            if len(parts) == len(sample.parts):
                pending_bytes -= sum(len(data) for _, data in pending.pop(number))
                try:
                    _verify(selection.path, sample, parts)
                except PenstockError as error:
                    yield sample, error
                else:
                    yield sample, parts
            if pending_bytes > MAX_PENDING_BYTES:
                raise ShardError(
                    "the parts of samples lie so far apart that more than "
                    f"{MAX_PENDING_BYTES} bytes of incomplete samples are held in memory",
                    shard=selection.path,
                    offset=offset,
                    stage="pack",
                    advice="Decompress this shard first; a plain tar is read at any offset.",
                )


def _verify(shard: str, sample: Sample, parts: list[tuple[str, bytes]]) -> None:
    for part, (_, data) in zip(sample.parts, parts, strict=True):
        reason = _damage(part, data)
        if reason:
            raise DecodeError(reason, shard=shard, member=sample.key + part.suffix, offset=part.offset, stage="read")


def _damage(part: Part, data: bytes) -> str | None:
    """Return why these cannot be the bytes that were indexed; None if they can."""
    if len(data) != part.length:
        return f"has {len(data)} bytes where {part.length} were indexed"
    if part.crc32 is not None and deflate.crc32(data) != part.crc32:
        return "CRC32 does not match the index"
    return None

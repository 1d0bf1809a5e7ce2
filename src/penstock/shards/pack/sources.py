"""Where the samples come from: shards, or a folder of loose files that is indexed as if it were one."""

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
"""A compressed shard only goes forward, so parts wait in memory for their partners: this much at most."""


@dataclass(frozen=True)
class PackSource:
    """A shard or a folder, its index, and which of its samples are whole."""

    path: str
    is_folder: bool
    index: ShardIndex
    complete: NDArray[np.int64]
    problems: list[ShardProblem]

    @property
    def splittable(self) -> bool:
        """A compressed shard is read from the start or not at all, so it goes to one task whole."""
        return self.index.compression is None

    def select(self, numbers: Iterable[int], prefix: str = "") -> SampleSelection:
        """Those samples of this source, by number."""
        samples = tuple(self.index.sample(number) for number in numbers)
        return SampleSelection(self.path, self.is_folder, not self.splittable, self.index.binding, prefix, samples)


@dataclass(frozen=True, slots=True)
class SampleSelection:
    """Some samples of one source: what a task is made of. Small, and pickles."""

    path: str
    is_folder: bool
    sequential: bool
    binding: IndexBinding
    """What the source looked like when it was indexed."""
    prefix: str
    """Goes in front of every key, because another source has some of the same; else empty."""
    samples: tuple[Sample, ...]


def find_pack_sources(src: str, options: PackOptions) -> Iterator[PackSource]:
    """The shards that `src` names, or the folder itself if it holds loose files."""
    path = Path(src)
    if path.is_dir() and not any(is_shard_name(name) for name in os.listdir(path)):
        yield _make_source(src, True, _index_folder(path), options)
        return
    shards = expand_shard_paths(src)
    found: dict[str, PackSource] = {}
    for scanned in index_shards(shards):
        if scanned.index is None:
            raise scanned.error or ShardError("cannot be indexed", shard=scanned.shard)
        found[scanned.shard] = _make_source(scanned.shard, False, scanned.index, options)
    yield from (found[shard] for shard in shards)


def _make_source(path: str, is_folder: bool, index: ShardIndex, options: PackOptions) -> PackSource:
    index = index.paired_by(options.require)
    return PackSource(path, is_folder, index, *complete_samples(index, path, options.require, options.on_bad))


def _index_folder(root: Path) -> ShardIndex:
    """Loose files as members of one shard: name by path, offset always 0."""
    members = TarMembers()
    newest = 0
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = os.path.join(folder, name)
            if name.startswith(".") or not os.path.isfile(path):
                continue
            facts = os.stat(path)
            members.names.append(_member_name(os.path.relpath(path, root)))
            members.offsets.append(0)
            members.lengths.append(facts.st_size)
            newest = max(newest, facts.st_mtime_ns)
    if not members.names:
        raise SettingError(f"nothing to pack in folder {str(root)!r}")
    total = sum(members.lengths)
    return build_index(members, OpenedShard(IndexBinding(total, newest), None, total))


def _member_name(path: str) -> str:
    """The member name of a loose file; what cannot be one, or is a shard itself, is refused."""
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


def read_samples(take: SampleSelection) -> Iterator[tuple[Sample, list[tuple[str, bytes]] | PenstockError]]:
    """Each sample with its parts' bytes, or with what is wrong with it.

    Storage that fails is raised: what it did not give may be sound, and is not to be left out for good.
    """
    if take.is_folder:
        return _read_files(take)
    return _read_in_order(take) if take.sequential else _read_at_offsets(take)


def _read_at_offsets(take: SampleSelection) -> Iterator[tuple[Sample, list[tuple[str, bytes]] | PenstockError]]:
    with _open_unchanged(take) as shard:
        for sample in take.samples:
            parts = [(part.suffix, shard.read_at(part.offset, part.length)) for part in sample.parts]
            if isinstance(shard, RemoteShard) and any(map(_fault, sample.parts, (data for _, data in parts))):
                parts = [(part.suffix, shard.reread(part.offset, part.length)) for part in sample.parts]
            try:
                _verify(take.path, sample, parts)
            except DecodeError as error:
                yield sample, error
            else:
                yield sample, parts


def _read_files(take: SampleSelection) -> Iterator[tuple[Sample, list[tuple[str, bytes]] | PenstockError]]:
    for sample in take.samples:
        try:
            parts = [(part.suffix, _read_file(take.path, sample.key + part.suffix)) for part in sample.parts]
            _verify(take.path, sample, parts)
        except DecodeError as error:
            yield sample, error
        else:
            yield sample, parts


def _read_file(root: str, name: str) -> bytes:
    """What a file holds; one that is gone, alone, is a bad sample."""
    try:
        return Path(root, name).read_bytes()
    except OSError as error:
        if isinstance(error, FileNotFoundError) and os.path.isdir(root):
            raise DecodeError("is not there any more", shard=root, member=name, stage="read") from error
        raise StorageError(f"cannot read: {error.strerror}", shard=root, member=name, stage="read") from error


def _open_unchanged(take: SampleSelection) -> AnyShard:
    """The shard, if it is still the one that was indexed: offsets into another would be nonsense."""
    shard = open_shard(take.path)
    if IndexBinding.of(shard) != take.binding:
        shard.close()
        raise ShardError(
            "changed since it was indexed",
            shard=take.path,
            stage="read",
            advice="Let nothing write to the sources while they are packed, and begin again.",
        )
    return shard


def _read_in_order(take: SampleSelection) -> Iterator[tuple[Sample, list[tuple[str, bytes]] | PenstockError]]:
    """Samples as they become complete; only parts that wait for a partner are held."""
    by_offset = sorted(
        ((part.offset, number, part) for number, sample in enumerate(take.samples) for part in sample.parts),
        key=lambda place: place[:2],
    )
    pending: dict[int, list[tuple[str, bytes]]] = {}
    held = 0
    with _open_unchanged(take) as shard:
        for offset, number, part in by_offset:
            sample = take.samples[number]
            parts = pending.setdefault(number, [])
            parts.append((part.suffix, shard.read_at(offset, part.length)))
            held += part.length
            if len(parts) == len(sample.parts):
                held -= sum(len(data) for _, data in pending.pop(number))
                try:
                    _verify(take.path, sample, parts)
                except PenstockError as error:
                    yield sample, error
                else:
                    yield sample, parts
            if held > MAX_PENDING_BYTES:
                raise ShardError(
                    f"parts lie so far apart that more than {MAX_PENDING_BYTES} bytes wait for their partners",
                    shard=take.path,
                    offset=offset,
                    stage="pack",
                    advice="Decompress this shard first; a plain tar is read at any offset.",
                )


def _verify(shard: str, sample: Sample, parts: list[tuple[str, bytes]]) -> None:
    for part, (_, data) in zip(sample.parts, parts, strict=True):
        reason = _fault(part, data)
        if reason:
            raise DecodeError(reason, shard=shard, member=sample.key + part.suffix, offset=part.offset, stage="read")


def _fault(part: Part, data: bytes) -> str | None:
    if len(data) != part.length:
        return f"has {len(data)} bytes where {part.length} were indexed"
    if part.crc32 is not None and deflate.crc32(data) != part.crc32:
        return "CRC32 does not match the index"
    return None

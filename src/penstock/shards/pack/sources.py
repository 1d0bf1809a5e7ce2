"""The sources of a pack: shards, a folder of loose files that is indexed as if it were one shard, or record files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import deflate
import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import Part, Sample
from penstock.core.types import Ints
from penstock.errors import DecodeError, PenstockError, SettingError, ShardError, StorageError
from penstock.shards.index import IndexBinding, OpenedShard, ShardIndex, build_index
from penstock.shards.open_shard import AnyShard, RemoteShard, open_shard
from penstock.shards.pack.class_folders import (
    CLASSES_NAME,
    IMAGE_SUFFIXES,
    LABEL_SUFFIX,
    are_class_folders,
    class_numbers,
    only_images,
)
from penstock.shards.pack.options import PackOptions
from penstock.shards.pack.records.find import (
    RecordFile,
    find_record_files,
    format_by_name,
    list_record_files,
)
from penstock.shards.pack.records.reader import RecordReader, check_unchanged
from penstock.shards.pairing import RequiredPart
from penstock.shards.scan import index_shards
from penstock.shards.tar import TarMembers
from penstock.shards.validate import ShardProblem, complete_samples
from penstock.storage.paths import expand_shard_paths, is_shard_name

MAX_PENDING_BYTES = 1 << 30
"""A compressed shard can only be read forward, so parts are held in memory until their sample is complete: at most this
many bytes."""


@dataclass(frozen=True)
class PackSource:
    """A shard, a folder or a file of records, with its index."""

    path: str
    is_folder: bool
    index: ShardIndex
    complete: NDArray[np.int64]
    """Numbers of the complete samples."""
    problems: list[ShardProblem]
    """The problems of the incomplete samples, and of members that are not files."""
    reader: RecordReader | None = None
    """Reads the file if it is one of records."""
    classes: tuple[str, ...] = ()
    """Names of the class folders, if samples get their labels from these."""
    class_numbers: Ints | None = None
    """The label of each sample, if samples get them from folders."""

    @property
    def class_files(self) -> Mapping[str, tuple[str, ...]]:
        """The names of classes to store, by file name."""
        if self.reader is not None:
            return {column.classes_file: column.classes for column in self.reader.columns if column.classes}
        return {CLASSES_NAME: self.classes} if self.classes else {}

    @property
    def splittable(self) -> bool:
        """Whether several tasks may share the source; a compressed shard can only be read from its start, by one."""
        return self.index.compression is None

    def select(self, numbers: Iterable[int], prefix: str = "") -> SampleSelection:
        """Return the samples with these numbers, for a task."""
        chosen = list(numbers)
        samples = tuple(self.index.sample(number) for number in chosen)
        labels = () if self.class_numbers is None else tuple(self.class_numbers[chosen].tolist())
        binding, sequential = self.index.binding, not self.splittable
        return SampleSelection(self.path, self.is_folder, sequential, binding, prefix, samples, self.reader, labels)


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
    reader: RecordReader | None = None
    """Reads the source if it is a file of records."""
    labels: tuple[int, ...] = ()
    """The label of each sample, if samples get them from folders."""

    def place(self, sample: Sample, suffix: str | None) -> tuple[str, int | None]:
        """Return the member and the offset that an error about a part of a sample states."""
        part = sample.part(suffix or "") or sample.parts[0]
        if self.reader is None or self.reader.named_parts:
            return sample.key + part.suffix, part.offset if self.reader is None else None
        return sample.key + (suffix or ""), part.offset if self.reader.byte_offsets else None


ReadSample = tuple[Sample, list[tuple[str, bytes]] | PenstockError]
"""A sample with (suffix, bytes) of each part, or with the error that makes it bad."""


def find_pack_sources(src: str, options: PackOptions) -> Iterator[PackSource]:
    """Yield the shards or the files of records that `src` names, or the folder itself if it holds loose files."""
    records = find_record_files(src, options.format)
    if options.labels == "folder" and (records is not None or not os.path.isdir(src)):
        raise SettingError(f"{src!r} is no folder of loose files", advice="Leave --labels folder out.")
    if records is not None:
        for file in list_record_files(*records, options):
            yield _record_source(file, options)
        return
    if options.columns:
        raise SettingError(f"{src!r} holds no records, so it has no columns", advice="Leave --column out.")
    path = Path(src)
    if path.is_dir() and not any(is_shard_name(name) for name in os.listdir(path)):
        yield _folder_source(path, options)
        return
    shards = expand_shard_paths(src)
    sources: dict[str, PackSource] = {}
    for scanned in index_shards(shards):
        if scanned.index is None:
            raise scanned.error or ShardError("cannot be indexed", shard=scanned.shard)
        index = scanned.index.paired_by(_stated_parts(options))
        sources[scanned.shard] = PackSource(scanned.shard, False, index, *_complete(index, scanned.shard, options))
    yield from (sources[shard] for shard in shards)


def _stated_parts(options: PackOptions) -> tuple[str, ...]:
    """Return the suffixes by which names are split."""
    return (*options.require, *options.masks)


def _complete(
    index: ShardIndex, path: str, options: PackOptions, required: Sequence[RequiredPart] = ()
) -> tuple[NDArray[np.int64], list[ShardProblem]]:
    """Return the complete samples and the problems of the others; `required` parts are added to those of the user."""
    wanted = (*options.require, *required) or None
    return complete_samples(index, path, wanted, options.on_bad, optional=options.masks, skip_with="--on-error skip")


def _record_source(file: RecordFile, options: PackOptions) -> PackSource:
    index, path = file.listed.index, file.path
    if file.listed.problems and options.on_bad == "raise":
        first = file.listed.problems[0]
        raise ShardError(
            first.reason,
            shard=path,
            member=first.member,
            offset=first.offset,
            stage="read",
            advice="Copy or download it again, or pack what can be read with --on-error skip",
        )
    if file.reader.named_parts:
        index = index.paired_by(_stated_parts(options))
        complete, problems = _complete(index, path, options)
    elif options.require:
        raise SettingError("the parts of records are given by their columns", advice="Leave out --require.")
    else:
        complete, problems = np.arange(len(index)), list(file.listed.problems)
    return PackSource(path, False, index, complete, problems, file.reader)


def _folder_source(root: Path, options: PackOptions) -> PackSource:
    """Return a folder of loose files as a source, with labels if its folders are classes."""
    members, opened = _list_folder(root, options)
    stated: tuple[RequiredPart, ...] = _stated_parts(options)
    index = build_index(members, opened, stated)
    names = [index.member_name(part) for part in range(index.part_count)]
    by_class = options.labels == "folder" or (options.labels == "auto" and are_class_folders(names))
    images = (IMAGE_SUFFIXES,) if by_class and only_images(names) else ()
    if images:  # then a name may have dots before its ending
        index = build_index(members, opened, (*stated, *images))
    classes, numbers = class_numbers(index, str(root)) if by_class else ((), None)
    complete, problems = _complete(index, str(root), options, images)
    return PackSource(str(root), True, index, complete, problems, None, classes, numbers)


def _list_folder(root: Path, options: PackOptions) -> tuple[TarMembers, OpenedShard]:
    """Return loose files as if they were the members of one shard, named by their relative paths, all at offset 0."""
    members = TarMembers()
    newest = 0
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = os.path.join(folder, name)
            if name.startswith(".") or not os.path.isfile(path):
                continue
            status = os.stat(path)
            members.names.append(_member_name(os.path.relpath(path, root), options))
            members.offsets.append(0)
            members.lengths.append(status.st_size)
            newest = max(newest, status.st_mtime_ns)
    if not members.names:
        raise SettingError(f"nothing to pack in folder {str(root)!r}")
    total = sum(members.lengths)
    return members, OpenedShard(IndexBinding(total, newest), None, total)


def _member_name(path: str, options: PackOptions) -> str:
    """Return the member name of a loose file; raise if the name is not valid UTF-8 or the file holds many samples."""
    if is_shard_name(path):
        raise SettingError(
            f"there are shards deeper in this folder, such as {path!r}",
            advice="Name the shards themselves: 'FOLDER/**/*.tar'.",
        )
    if options.format == "auto" and format_by_name(path) not in (None, "hdf5"):  # HDF5 files may be parts of samples
        raise SettingError(
            f"there are files of records deeper in this folder, such as {path!r}",
            advice="Name the files or their folder, or give --source-format files to pack them as they are.",
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
    if selection.reader is not None:
        return _read_records(selection, selection.reader)
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


def _read_records(selection: SampleSelection, reader: RecordReader) -> Iterator[ReadSample]:
    """Read the samples of a file of records."""
    check_unchanged(selection.path, selection.binding)
    for sample, parts in zip(selection.samples, reader.read(selection.path, selection.samples), strict=True):
        if isinstance(parts, PenstockError):
            member, offset = selection.place(sample, None)
            parts.at(shard=selection.path, member=member, offset=offset, stage="read")
        yield sample, parts


def _read_files(selection: SampleSelection) -> Iterator[ReadSample]:
    """Read the samples of a folder of loose files."""
    for number, sample in enumerate(selection.samples):
        try:
            parts = [(part.suffix, _read_file(selection.path, sample.key + part.suffix)) for part in sample.parts]
            _verify(selection.path, sample, parts)
        except DecodeError as error:
            yield sample, error
        else:
            if selection.labels:
                parts.append((LABEL_SUFFIX, str(selection.labels[number]).encode()))
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
    if part.unreadable:
        return part.unreadable
    if len(data) != part.length:
        return f"has {len(data)} bytes where {part.length} were indexed"
    if part.crc32 is not None and deflate.crc32(data) != part.crc32:
        return "CRC32 does not match the index"
    return None

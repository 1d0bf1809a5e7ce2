"""The workload that all loaders of the benchmark run over: shards, fields, and the keys that must be delivered."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from penstock.bench.fields import BenchmarkField
from penstock.bench.loader_run import digest
from penstock.core.types import Ids
from penstock.errors import SettingError
from penstock.shards.index import ShardIndex
from penstock.shards.open_shard import compression_from_name, open_shard
from penstock.shards.scan import index_shard
from penstock.shards.validate import complete_samples

SLACK = 1.25
"""Shards that hold at most this many times the requested samples are used whole: a copy would not pay off."""
MAX_COPY_BYTES = 1 << 30
"""Most bytes to copy to a temporary folder, which may be in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkWorkload:
    """The input of a benchmark, as plain data: the processes of the loaders receive it as JSON."""

    shards: tuple[str, ...]
    suffixes: tuple[str, ...]
    """All suffixes of the shards: a reader that knows only `.jpg` would treat `a_cam.jpg` as an image of `a_cam`."""
    fields: tuple[BenchmarkField, ...]
    batch_size: int
    samples: int
    keys_digest: str
    copied: bool
    """Whether these shards are copies of the first samples of larger ones."""

    def save(self, path: Path) -> None:
        """Write a file for `load_workload` in another process."""
        path.write_bytes(msgspec.json.encode(self))


def load_workload(path: str | os.PathLike[str]) -> BenchmarkWorkload:
    """Read a file that `BenchmarkWorkload.save` wrote."""
    return msgspec.json.decode(Path(path).read_bytes(), type=BenchmarkWorkload)


@dataclass(frozen=True, slots=True)
class _ShardRange:
    """The samples of one shard that the benchmark reads."""

    shard: str
    index: ShardIndex
    numbers: Ids

    def head(self, count: int) -> _ShardRange:
        return _ShardRange(self.shard, self.index, self.numbers[:count])

    def key_list(self) -> list[str]:
        return [self.index.keys[number] for number in self.numbers.tolist()]


def make_workload(
    shards: Sequence[str],
    fields: Sequence[BenchmarkField],
    batch_size: int,
    samples: int,
    min_shards: int,
    folder: Path,
) -> BenchmarkWorkload:
    """Make a workload of about `samples` samples in at least `min_shards` shards, or in all there are.

    A plain loader assigns whole shards to its workers, so with fewer shards than workers some would be idle. Where that
    many shards hold far too many samples, the first samples of each are copied to `folder`: a tar cannot be read in
    part if all its images precede all its arrays.
    """
    ranges = _first_shards(shards, fields, samples, min_shards)
    found = sum(len(each.numbers) for each in ranges)
    if found < 2 * batch_size:
        raise SettingError(
            f"{found} samples do not make two batches of {batch_size}", advice="Take smaller batches or more shards"
        )
    paths = [each.shard for each in ranges]
    copied = found > SLACK * samples
    if copied:
        ranges = _shorten(ranges, -(-max(samples, 2 * batch_size) // len(ranges)))
        paths = [_copy(each, folder / f"{number:06d}.tar") for number, each in enumerate(ranges)]
    keys = [key for each in ranges for key in each.key_list()]
    return BenchmarkWorkload(
        shards=tuple(paths),
        suffixes=tuple(dict.fromkeys(suffix for each in ranges for suffix in each.index.suffixes)),
        fields=tuple(fields),
        batch_size=batch_size,
        samples=len(keys),
        keys_digest=digest(keys),
        copied=copied,
    )


def _first_shards(
    shards: Iterable[str], fields: Sequence[BenchmarkField], samples: int, min_shards: int
) -> list[_ShardRange]:
    """Return as many shards as are needed; the others of a huge dataset are not indexed."""
    found: list[_ShardRange] = []
    for shard in shards:
        if len(found) >= min_shards and sum(len(each.numbers) for each in found) >= samples:
            break
        found.append(_whole_shard(shard, tuple(dict.fromkeys(field.suffix for field in fields))))
    return found


def _whole_shard(shard: str, suffixes: tuple[str, ...]) -> _ShardRange:
    if compression_from_name(shard) == "zst":
        raise SettingError(f"{shard!r}: a plain DataLoader's tarfile reads no zstd", advice="Use plain or gz shards")
    index = index_shard(shard).paired_by(suffixes)
    numbers, _ = complete_samples(index, shard, suffixes)
    return _ShardRange(shard, index, numbers)


def _shorten(ranges: list[_ShardRange], count: int) -> list[_ShardRange]:
    """Return the first `count` samples of each shard, or fewer if their bytes exceed MAX_COPY_BYTES."""
    heads = [each.head(count) for each in ranges]
    size = sum(int(each.index.lengths[_part_numbers(each)].sum()) for each in heads)
    if size > MAX_COPY_BYTES:
        return [each.head(max(1, count * MAX_COPY_BYTES // size)) for each in heads]
    return heads


def _part_numbers(shard_range: _ShardRange) -> Ids:
    """Return the numbers of the samples' parts, by their offset in the shard."""
    parts = np.flatnonzero(np.isin(shard_range.index.sample_ids, shard_range.numbers))
    return parts[np.argsort(shard_range.index.offsets[parts], kind="stable")]


def _copy(shard_range: _ShardRange, path: Path) -> str:
    """Copy the members in their order, compressed if the shard is, and index the copy as shards in use are."""
    zipped = compression_from_name(shard_range.shard) == "gz"
    target = path.with_name(f"{path.name}.gz") if zipped else path
    with open_shard(shard_range.shard) as source, tarfile.open(target, "w:gz" if zipped else "w") as tar:
        for number in _part_numbers(shard_range).tolist():
            part = shard_range.index.part(number)
            member = tarfile.TarInfo(shard_range.index.member_name(number))
            member.size = part.length
            tar.addfile(member, io.BytesIO(source.read_at(part.offset, part.length)))
    index_shard(target)
    return str(target)

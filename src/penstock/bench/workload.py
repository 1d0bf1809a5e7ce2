"""What all contestants run over: the same shards, the same fields, and the keys that must come out."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.bench.fields import BenchmarkField
from penstock.bench.trial import digest
from penstock.errors import SettingError
from penstock.shards.index import ShardIndex
from penstock.shards.open_shard import compression_from_name, open_shard
from penstock.shards.scan import index_shard
from penstock.shards.validate import complete_samples

SLACK = 1.25
"""Shards that hold at most so many times the samples wanted are taken whole: no copy is worth a quarter."""
MAX_COPY_BYTES = 1 << 30
"""What may be copied to a temporary folder, which may lie in memory."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkWorkload:
    """Plain data: it travels to the contestants' processes as JSON."""

    shards: tuple[str, ...]
    suffixes: tuple[str, ...]
    """All suffixes of the shards: a reader that knows only `.jpg` would take `a_cam.jpg` for a picture of `a_cam`."""
    fields: tuple[BenchmarkField, ...]
    batch_size: int
    samples: int
    keys_digest: str
    copied: bool
    """Whether these shards are copies of the first samples of larger ones."""

    def save(self, path: Path) -> None:
        """For `load_workload` in another process."""
        path.write_bytes(msgspec.json.encode(self))


def load_workload(path: str | os.PathLike[str]) -> BenchmarkWorkload:
    """What `BenchmarkWorkload.save` has written."""
    return msgspec.json.decode(Path(path).read_bytes(), type=BenchmarkWorkload)


@dataclass(frozen=True, slots=True)
class _ShardRange:
    """The samples of one shard that are raced."""

    shard: str
    index: ShardIndex
    numbers: Numbers

    def head(self, count: int) -> _ShardRange:
        return _ShardRange(self.shard, self.index, self.numbers[:count])

    def key_list(self) -> list[str]:
        return [self.index.keys[number] for number in self.numbers.tolist()]


def make_workload(
    shards: Sequence[str], fields: Sequence[BenchmarkField], batch_size: int, samples: int, lanes: int, folder: Path
) -> BenchmarkWorkload:
    """A course of about `samples` samples in at least `lanes` shards, or in all there are.

    A plain loader gives whole shards to its workers, so a course of fewer shards than workers would starve it. Where
    that many shards hold far too much, the first samples of each are copied to `folder`: a tar cannot be read in part
    when all its pictures come before all its arrays.
    """
    stretches = _enough(shards, fields, samples, lanes)
    found = sum(len(stretch.numbers) for stretch in stretches)
    if found < 2 * batch_size:
        raise SettingError(
            f"{found} samples do not make two batches of {batch_size}", advice="Take smaller batches or more shards"
        )
    paths = [stretch.shard for stretch in stretches]
    copied = found > SLACK * samples
    if copied:
        stretches = _within(stretches, -(-max(samples, 2 * batch_size) // len(stretches)))
        paths = [_copy(stretch, folder / f"{number:06d}.tar") for number, stretch in enumerate(stretches)]
    keys = [key for stretch in stretches for key in stretch.key_list()]
    return BenchmarkWorkload(
        shards=tuple(paths),
        suffixes=tuple(dict.fromkeys(suffix for stretch in stretches for suffix in stretch.index.suffixes)),
        fields=tuple(fields),
        batch_size=batch_size,
        samples=len(keys),
        keys_digest=digest(keys),
        copied=copied,
    )


def _enough(shards: Iterable[str], fields: Sequence[BenchmarkField], samples: int, lanes: int) -> list[_ShardRange]:
    """Only as many shards as needed are looked at: of a huge dataset, not all are indexed."""
    found: list[_ShardRange] = []
    for shard in shards:
        if len(found) >= lanes and sum(len(stretch.numbers) for stretch in found) >= samples:
            break
        found.append(_whole(shard, tuple(dict.fromkeys(field.suffix for field in fields))))
    return found


def _whole(shard: str, suffixes: tuple[str, ...]) -> _ShardRange:
    if compression_from_name(shard) == "zst":
        raise SettingError(f"{shard!r}: a plain DataLoader's tarfile reads no zstd", advice="Race plain or gz shards")
    index = index_shard(shard).paired_by(suffixes)
    numbers, _ = complete_samples(index, shard, suffixes)
    return _ShardRange(shard, index, numbers)


def _within(stretches: list[_ShardRange], each: int) -> list[_ShardRange]:
    """The first `each` samples of each, or fewer if their bytes are too many to copy."""
    heads = [stretch.head(each) for stretch in stretches]
    size = sum(int(stretch.index.lengths[_parts(stretch)].sum()) for stretch in heads)
    return (
        heads if size <= MAX_COPY_BYTES else [stretch.head(max(1, each * MAX_COPY_BYTES // size)) for stretch in heads]
    )


def _parts(stretch: _ShardRange) -> Numbers:
    """The parts of the samples, in the order in which they lie in the shard."""
    parts = np.flatnonzero(np.isin(stretch.index.sample_ids, stretch.numbers))
    return parts[np.argsort(stretch.index.offsets[parts], kind="stable")]


def _copy(stretch: _ShardRange, path: Path) -> str:
    """The same members in the same order, compressed if the shard is; indexed here, as shards in use are."""
    zipped = compression_from_name(stretch.shard) == "gz"
    target = path.with_name(f"{path.name}.gz") if zipped else path
    with open_shard(stretch.shard) as source, tarfile.open(target, "w:gz" if zipped else "w") as tar:
        for at in _parts(stretch).tolist():
            part = stretch.index.part(at)
            member = tarfile.TarInfo(stretch.index.member_name(at))
            member.size = part.length
            tar.addfile(member, io.BytesIO(source.read_at(part.offset, part.length)))
    index_shard(target)
    return str(target)

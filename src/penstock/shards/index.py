"""The index of one shard: for every sample its key and the byte range of each part.

Columns, not objects: a shard of a million samples is six arrays. Parts are stored sample after sample
(`starts[i]:starts[i + 1]` are the parts of sample i), samples in the order in which their first part lies in the shard.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import Part, Sample
from penstock.errors import StorageError
from penstock.shards.open_shard import Compression
from penstock.shards.pairing import split_names
from penstock.shards.tar import TarMembers


class ShardIdentity(Protocol):
    """What every open shard knows of itself."""

    path: str
    size: int
    mtime_ns: int
    etag: str | None


@dataclass(frozen=True, slots=True)
class IndexBinding:
    """What the shard looked like when it was indexed; another look means another shard."""

    size: int
    mtime_ns: int
    """0 where there is an ETag."""
    etag: str | None = None
    """Of an object in a store."""

    @classmethod
    def of(cls, shard: ShardIdentity) -> Self:
        """As an open shard looks."""
        return cls(shard.size, shard.mtime_ns, shard.etag)

    def check(self, shard: ShardIdentity) -> None:
        """That an open shard still looks so."""
        if IndexBinding.of(shard) != self:
            raise StorageError("has changed since it was indexed", shard=shard.path, stage="read", advice="Start again")


@dataclass(frozen=True)
class ShardIndex:
    """Where every part of every sample lies."""

    binding: IndexBinding
    compression: Compression | None
    data_length: int
    """Length of the tar itself: the file's size, or that of the uncompressed stream."""
    keys: list[str]
    suffixes: list[str]
    starts: NDArray[np.int64]
    """Sample i has the parts starts[i] to starts[i + 1]; one entry more than there are samples."""
    suffix_ids: NDArray[np.uint32]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    crcs: NDArray[np.uint32] | None
    """CRC32 of each part, where whoever wrote the shard knew it."""
    notes: list[tuple[str, int, str]]
    """(name, offset, what it is) of members that are not files: links, devices, stray data."""

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def parts(self) -> int:
        """How many parts all samples have together."""
        return len(self.offsets)

    def sample(self, number: int) -> Sample:
        """One sample, as an object."""
        first, last = int(self.starts[number]), int(self.starts[number + 1])
        return Sample(self.keys[number], tuple(self.part(at) for at in range(first, last)))

    def part(self, at: int) -> Part:
        """One part, by its place in the columns."""
        crc = None if self.crcs is None else int(self.crcs[at])
        suffix = self.suffixes[int(self.suffix_ids[at])]
        return Part(suffix, int(self.offsets[at]), int(self.lengths[at]), crc)

    @cached_property
    def sample_ids(self) -> NDArray[np.int64]:
        """For each part, the number of its sample."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.starts))

    def name(self, at: int) -> str:
        """The member name of a part."""
        return self.keys[int(self.sample_ids[at])] + self.suffixes[int(self.suffix_ids[at])]

    def split_by(self, suffixes: Sequence[str]) -> ShardIndex:
        """The same parts, paired by these suffixes instead of those that were inferred."""
        if not suffixes or set(suffixes) <= set(self.suffixes):
            return self
        by_offset = np.argsort(self.offsets, kind="stable").tolist()
        names = [self.name(at) for at in by_offset]
        offsets, lengths = (array("q", column[by_offset].tobytes()) for column in (self.offsets, self.lengths))
        opened = OpenedShard(self.binding, self.compression, self.data_length)
        crcs = None if self.crcs is None else self.crcs[by_offset]
        return build_index(TarMembers(names, offsets, lengths, self.notes), opened, suffixes, crcs)


@dataclass(frozen=True, slots=True)
class OpenedShard:
    """The facts of an open shard that its index is bound to."""

    binding: IndexBinding
    compression: Compression | None
    data_length: int


def build_index(
    members: TarMembers,
    opened: OpenedShard,
    suffixes: Sequence[str] | None = None,
    crcs: NDArray[np.uint32] | None = None,
) -> ShardIndex:
    """Pair the members of a shard; `crcs` are theirs, in the same order."""
    split = split_names(members.names, suffixes)
    # Members come by offset and keys are numbered by first appearance, so a stable sort by key is all there is to do.
    order = np.argsort(split.key_ids, kind="stable")
    counts = np.bincount(split.key_ids, minlength=len(split.keys))
    return ShardIndex(
        binding=opened.binding,
        compression=opened.compression,
        data_length=opened.data_length,
        keys=split.keys,
        suffixes=split.suffixes,
        starts=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        suffix_ids=split.suffix_ids[order].astype(np.uint32),
        offsets=np.asarray(members.offsets, np.int64)[order],
        lengths=np.asarray(members.lengths, np.int64)[order],
        crcs=None if crcs is None else crcs[order],
        notes=members.notes,
    )

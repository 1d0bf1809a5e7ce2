"""The complete samples of several shards, numbered over all shards, and where their parts lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from penstock.core.types import Ids
from penstock.errors import PairingError
from penstock.shards.index import ShardIndex
from penstock.shards.pairing import canonical_suffix

MISSING = -1
"""Choice of an optional part that the sample does not have."""


@dataclass(frozen=True, slots=True)
class WantedPart:
    """A part of each sample that a field reads."""

    suffixes: tuple[str, ...]
    """The suffixes it may have, in order of preference."""
    optional: bool = False
    """Whether a sample may lack it."""


@dataclass(frozen=True, slots=True)
class SampleInfo:
    """A sample as the index describes it, for a `filter` function of the user."""

    key: str
    shard: str
    """Path of the shard."""
    sizes: Mapping[str, int]
    """Bytes of each part, by its suffix."""


@dataclass(frozen=True)
class SampleIndex:
    """Samples by number, shard after shard in the order of their indexes.

    The wanted parts of a sample are those that the fields read. A field may accept several suffixes, its alternatives.
    """

    paths: list[str]
    indexes: list[ShardIndex]
    first_samples: Ids
    """First sample of each shard, with one entry more than there are shards."""
    parts: list[Ids]
    """Per shard, an array (samples, wanted parts): the position of each wanted part in the index's columns. Where a
    part is missing, it is the position of another part of the sample."""
    choices: list[Ids]
    """Per shard, an array (samples, wanted parts): which of its field's suffixes each part has, or MISSING."""
    numbers: list[Ids]
    """Per shard, each sample's number in the shard's own index."""
    sends_keys: bool = False
    """Whether the rows of tasks contain the samples' keys, because workers need them."""

    def __len__(self) -> int:
        return int(self.first_samples[-1])

    def wanted_bytes(self) -> Ids:
        """Return the bytes of each sample's wanted parts."""
        columns = zip(self.indexes, self.parts, self.choices, strict=True)
        sums = [(index.lengths[parts] * (choices != MISSING)).sum(axis=1) for index, parts, choices in columns]
        return np.concatenate(sums).astype(np.int64)

    def keys(self, samples: Ids) -> list[str]:
        """Return the samples' keys."""
        keys = self._keys
        return [keys[sample] for sample in samples.tolist()]

    @cached_property
    def _keys(self) -> list[str]:
        """The keys of all samples in one list: the training loop waits while the keys of a batch are found."""
        keys: list[str] = []
        for index, numbers in zip(self.indexes, self.numbers, strict=True):
            keys += index.keys if len(numbers) == len(index) else [index.keys[number] for number in numbers.tolist()]
        return keys

    @cached_property
    def key_columns(self) -> int:
        """Columns of a task's row that hold the sample's key as UTF-8, eight bytes each, padded with zeros."""
        return -(-max((len(key.encode()) for key in self._keys), default=0) // 8) if self.sends_keys else 0

    def with_keys(self, rows: Ids, samples: Ids) -> Ids:
        """Return the rows of these samples with `key_columns` more columns."""
        if not self.key_columns:
            return rows
        keys = np.array([key.encode() for key in self.keys(samples)], f"S{8 * self.key_columns}")
        return np.hstack((rows, keys.view("<i8").reshape(len(samples), self.key_columns)))

    def key(self, sample: int) -> str:
        """Return a sample's key."""
        return self._keys[sample]

    def shards_of(self, samples: Ids) -> Ids:
        """Return the shard that each sample lies in."""
        return np.searchsorted(self.first_samples, samples, side="right") - 1

    def location(self, sample: int, suffix: str | None = None) -> tuple[str, str, int]:
        """Return shard, member and offset of a part, for messages; without a suffix, the key and the first part."""
        shard = int(np.searchsorted(self.first_samples, sample, side="right")) - 1
        index, parts = self.indexes[shard], self.parts[shard][sample - self.first_samples[shard]]
        if suffix is not None:
            wanted = canonical_suffix(suffix)
            stored = {index.suffixes[index.suffix_ids[part]]: int(index.offsets[part]) for part in parts}
            for found, offset in stored.items():
                if canonical_suffix(found) == wanted:
                    return self.paths[shard], self.key(sample) + found, offset
        if not len(parts):  # no field reads a part
            number = self.numbers[shard][sample - self.first_samples[shard]]
            parts = index.starts[number : number + 1]
        return self.paths[shard], self.key(sample) + (suffix or ""), int(index.offsets[parts].min())


def make_sample_index(
    paths: Sequence[str],
    indexes: Sequence[ShardIndex],
    complete: Sequence[Ids],
    wanted: Sequence[WantedPart],
    *,
    sends_keys: bool = False,
) -> SampleIndex:
    """Number the samples of all shards.

    `complete` are, per shard, the numbers of the samples to keep. Each of them must have all wanted parts that are not
    optional.
    """
    columns = zip(paths, indexes, complete, strict=True)
    tables = [_wanted_parts(path, index, numbers, wanted) for path, index, numbers in columns]
    counts = [len(numbers) for numbers in complete]
    first_samples = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    parts, choices = [parts for parts, _ in tables], [choices for _, choices in tables]
    return SampleIndex(list(paths), list(indexes), first_samples, parts, choices, list(complete), sends_keys)


def _wanted_parts(path: str, index: ShardIndex, complete: Ids, wanted: Sequence[WantedPart]) -> tuple[Ids, Ids]:
    """Return `SampleIndex.parts` and `SampleIndex.choices` of one shard."""
    parts = np.repeat(index.starts[:-1, None], len(wanted), axis=1)
    choices = np.full_like(parts, MISSING)
    spellings = [canonical_suffix(suffix) for suffix in index.suffixes]
    for column, part in enumerate(wanted):
        for choice, suffix in reversed(list(enumerate(part.suffixes))):  # the first is written last and wins
            same = [number for number, spelling in enumerate(spellings) if spelling == canonical_suffix(suffix)]
            if same:
                found = np.flatnonzero(np.isin(index.suffix_ids, same))
                parts[index.sample_ids[found], column] = found
                choices[index.sample_ids[found], column] = choice
    parts, choices = parts[complete], choices[complete]
    required = [not part.optional for part in wanted]
    if (choices[:, required] == MISSING).any():
        row, column = np.argwhere((choices == MISSING) & required)[0]
        sample = index.sample(int(complete[row]))
        raise PairingError(
            f"sample has no {' or '.join(wanted[column].suffixes)}",
            shard=path,
            member=sample.key,
            offset=sample.parts[0].offset,
            stage="pair",
        )
    return parts, choices

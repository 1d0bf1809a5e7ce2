"""The complete samples of several shards, numbered over all shards, and where their parts lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from penstock.core.types import Ids
from penstock.errors import PairingError
from penstock.shards.index import ShardIndex


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
    """Per shard, an array (samples, wanted parts): the position of each wanted part in the index's columns."""
    choices: list[Ids]
    """Per shard, an array (samples, wanted parts): which of its field's alternatives each part is."""
    numbers: list[Ids]
    """Per shard, each sample's number in the shard's own index."""

    def __len__(self) -> int:
        return int(self.first_samples[-1])

    def wanted_bytes(self) -> Ids:
        """Return the bytes of each sample's wanted parts."""
        columns = zip(self.indexes, self.parts, strict=True)
        return np.concatenate([index.lengths[parts].sum(axis=1) for index, parts in columns])

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
            parts = parts[[index.suffixes[index.suffix_ids[part]] == suffix for part in parts]]
        return self.paths[shard], self.key(sample) + (suffix or ""), int(index.offsets[parts].min())


def make_sample_index(
    paths: Sequence[str], indexes: Sequence[ShardIndex], complete: Sequence[Ids], wanted: Sequence[tuple[str, ...]]
) -> SampleIndex:
    """Number the samples of all shards.

    `complete` are, per shard, the numbers of the samples to keep; `wanted` are, per field, the suffixes it accepts.
    Each of these samples must have one of them for every field.
    """
    columns = zip(paths, indexes, complete, strict=True)
    tables = [_wanted_parts(path, index, numbers, wanted) for path, index, numbers in columns]
    counts = [len(numbers) for numbers in complete]
    first_samples = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    parts, choices = [parts for parts, _ in tables], [choices for _, choices in tables]
    return SampleIndex(list(paths), list(indexes), first_samples, parts, choices, list(complete))


def _wanted_parts(path: str, index: ShardIndex, complete: Ids, wanted: Sequence[tuple[str, ...]]) -> tuple[Ids, Ids]:
    """Return `SampleIndex.parts` and `SampleIndex.choices` of one shard."""
    parts = np.full((len(index), len(wanted)), -1, np.int64)
    choices = np.zeros_like(parts)
    for column, alternatives in enumerate(wanted):
        for choice, suffix in reversed(list(enumerate(alternatives))):  # the first is written last and wins
            if suffix in index.suffixes:
                found = np.flatnonzero(index.suffix_ids == index.suffixes.index(suffix))
                parts[index.sample_ids[found], column] = found
                choices[index.sample_ids[found], column] = choice
    parts = parts[complete]
    if (parts < 0).any():
        row, column = np.argwhere(parts < 0)[0]
        sample = index.sample(int(complete[row]))
        raise PairingError(
            f"sample has no {' or '.join(wanted[column])}",
            shard=path,
            member=sample.key,
            offset=sample.parts[0].offset,
            stage="pair",
        )
    return parts, choices[complete]

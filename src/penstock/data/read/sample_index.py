"""The whole samples of a dataset's shards, numbered through, and where their parts lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from penstock.errors import PairingError
from penstock.shards.index import ShardIndex

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class SampleIndex:
    """Samples by number, shard after shard in index order."""

    paths: list[str]
    indexes: list[ShardIndex]
    firsts: Ids
    """First sample of each shard; one entry more than there are shards."""
    parts: list[Ids]
    """Per shard, (samples, wanted): the place of each wanted part in the index's columns."""
    choices: list[Ids]
    """Per shard, (samples, wanted): which of the alternatives it is."""
    numbers: list[Ids]
    """Per shard, the index's own number of each sample."""

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def wanted_bytes(self) -> Ids:
        """Of each sample, all its wanted parts."""
        columns = zip(self.indexes, self.parts, strict=True)
        return np.concatenate([index.lengths[parts].sum(axis=1) for index, parts in columns])

    def keys(self, samples: Ids) -> list[str]:
        """Their keys."""
        names = self._names
        return [names[sample] for sample in samples.tolist()]

    @cached_property
    def _names(self) -> list[str]:
        """Of every sample, in one list: the training loop waits while a batch's are looked up."""
        names: list[str] = []
        for index, numbers in zip(self.indexes, self.numbers, strict=True):
            names += index.keys if len(numbers) == len(index) else [index.keys[number] for number in numbers.tolist()]
        return names

    def key(self, sample: int) -> str:
        """A sample's key."""
        return self._names[sample]

    def where(self, sample: int, suffix: str | None = None) -> tuple[str, str, int]:
        """For messages: shard, name and offset of that part of a sample; without a suffix, its key and first part."""
        shard = int(np.searchsorted(self.firsts, sample, side="right")) - 1
        index, parts = self.indexes[shard], self.parts[shard][sample - self.firsts[shard]]
        if suffix is not None:
            parts = parts[[index.suffixes[index.suffix_ids[part]] == suffix for part in parts]]
        return self.paths[shard], self.key(sample) + (suffix or ""), int(index.offsets[parts].min())


def make_sample_index(
    paths: Sequence[str], indexes: Sequence[ShardIndex], whole: Sequence[Ids], wanted: Sequence[tuple[str, ...]]
) -> SampleIndex:
    """`wanted` are alternatives per part; every whole sample must have one of each."""
    tables = [_wanted_parts(path, index, rows, wanted) for path, index, rows in zip(paths, indexes, whole, strict=True)]
    counts = [len(rows) for rows in whole]
    firsts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    parts, choices = [parts for parts, _ in tables], [choices for _, choices in tables]
    return SampleIndex(list(paths), list(indexes), firsts, parts, choices, list(whole))


def _wanted_parts(path: str, index: ShardIndex, whole: Ids, wanted: Sequence[tuple[str, ...]]) -> tuple[Ids, Ids]:
    table = np.full((len(index), len(wanted)), -1, np.int64)
    choices = np.zeros_like(table)
    for column, alternatives in enumerate(wanted):
        for choice, suffix in reversed(list(enumerate(alternatives))):  # the first one is written last and wins
            if suffix in index.suffixes:
                at = np.flatnonzero(index.suffix_ids == index.suffixes.index(suffix))
                table[index.sample_ids[at], column] = at
                choices[index.sample_ids[at], column] = choice
    table = table[whole]
    if (table < 0).any():
        row, column = np.argwhere(table < 0)[0]
        sample = index.sample(int(whole[row]))
        raise PairingError(
            f"sample has no {' or '.join(wanted[column])}",
            shard=path,
            member=sample.key,
            offset=sample.parts[0].offset,
            stage="pair",
        )
    return table, choices[whole]

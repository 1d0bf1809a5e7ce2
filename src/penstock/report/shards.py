"""What shards hold, summed up for people and for JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from penstock.shards.codecs.by_suffix import codec_of
from penstock.shards.index import ShardIndex
from penstock.shards.validate import ShardHealth


@dataclass
class PartSummary:
    """All parts with one suffix."""

    codec: str
    count: int = 0
    size_bytes: int = 0
    smallest_bytes: int | None = None
    largest_bytes: int = 0


@dataclass(frozen=True)
class ShardSummary:
    """One shard in a line."""

    shard: str
    samples: int
    parts: int
    size_bytes: int
    compression: str | None
    has_crcs: bool
    whole: int
    problems: dict[str, int]


@dataclass
class Listing:
    """What `shards ls` tells: each shard, each kind of part, and the sums."""

    shards: list[ShardSummary] = field(default_factory=list)
    parts: dict[str, PartSummary] = field(default_factory=dict)
    unreadable: list[dict[str, str]] = field(default_factory=list)

    @property
    def samples(self) -> int:
        """Samples in all readable shards, whole or not."""
        return sum(shard.samples for shard in self.shards)

    @property
    def whole(self) -> int:
        """Samples with every part, once, and not empty."""
        return sum(shard.whole for shard in self.shards)

    @property
    def healthy(self) -> bool:
        """Nothing unreadable, nothing amiss."""
        return not self.unreadable and not any(shard.problems for shard in self.shards)

    def add(self, shard: str, index: ShardIndex, health: ShardHealth) -> None:
        """Take one more shard in."""
        kinds: Counter[str] = Counter(problem.kind for problem in health.problems)
        whole = int(health.complete.sum())
        size = index.binding.size
        has_crcs = index.crcs is not None
        self.shards.append(
            ShardSummary(shard, len(index), index.part_count, size, index.compression, has_crcs, whole, dict(kinds))
        )
        for number, suffix in enumerate(index.suffixes):
            _add_sizes(self.parts.setdefault(suffix, PartSummary(codec_of(suffix))), index, number)

    def part_rows(self) -> Iterator[tuple[str, PartSummary]]:
        """Kinds of parts, heaviest first."""
        yield from sorted(self.parts.items(), key=lambda item: -item[1].size_bytes)


def _add_sizes(summary: PartSummary, index: ShardIndex, suffix_id: int) -> None:
    sizes = index.lengths[index.suffix_ids == suffix_id]
    if not len(sizes):
        return
    summary.count += len(sizes)
    summary.size_bytes += int(sizes.sum())
    smallest = int(sizes.min())
    summary.smallest_bytes = smallest if summary.smallest_bytes is None else min(smallest, summary.smallest_bytes)
    summary.largest_bytes = max(summary.largest_bytes, int(np.max(sizes)))


def problem_text(problems: Iterable[tuple[str, int]]) -> str:
    """`2 orphan, 1 duplicate`, or `none`."""
    return ", ".join(f"{count} {kind}" for kind, count in problems) or "none"

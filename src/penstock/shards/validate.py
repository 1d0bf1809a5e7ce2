"""Find the complete samples of a shard, and the problems of the others, so that no partial sample is ever delivered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from penstock.errors import PairingError, SettingError
from penstock.shards.index import ShardIndex
from penstock.shards.pairing import canonical_suffix

ProblemKind = Literal["duplicate", "incomplete", "orphan", "empty", "stray"]
MAX_LISTED = 10_000
"""Problems of one kind that are listed per shard; all are counted."""


@dataclass(frozen=True, slots=True)
class ShardProblem:
    """One problem of a shard, with the member and the offset."""

    kind: ProblemKind
    member: str
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class ShardHealth:
    """Which samples of a shard are complete, and its problems."""

    complete: NDArray[np.bool_]
    """Whether each sample has every expected part exactly once and not empty."""
    expected: tuple[str, ...]
    """The canonical suffixes that a complete sample has."""
    problems: list[ShardProblem]

    @property
    def bad(self) -> int:
        """Number of samples that are not complete."""
        return int((~self.complete).sum())


def check_samples(index: ShardIndex, required: Sequence[str] | None = None) -> ShardHealth:
    """Check every sample for the required suffixes, or else for those that at least half of the samples have.

    With required suffixes, other parts cannot make a sample bad.
    """
    suffixes, suffix_ids = _canonical_suffixes(index)
    expected = _required_suffixes(required) if required else _common_suffixes(index, suffixes, suffix_ids)
    expected_ids = [suffixes.get(suffix, -1) for suffix in expected]
    counts = _count_parts(index, suffix_ids, expected_ids)
    matters = np.isin(suffix_ids, expected_ids) if required else np.ones(len(suffix_ids), bool)
    problems: list[ShardProblem] = []
    duplicated = _duplicates(index, suffix_ids, matters, problems)
    missing = counts == 0
    complete = ~missing.any(axis=1)
    for number in np.flatnonzero(~complete)[:MAX_LISTED]:
        lacking = [expected[i] for i in np.flatnonzero(missing[number])]
        problems.append(_missing_part_problem(index, int(number), lacking))
    empty = np.flatnonzero((index.lengths == 0) & matters)
    problems += [
        ShardProblem("empty", index.member_name(part), int(index.offsets[part]), "has no bytes")
        for part in empty[:MAX_LISTED]
    ]
    complete[duplicated] = False
    complete[index.sample_ids[empty]] = False
    problems += [
        ShardProblem("stray", name, offset, reason) for name, offset, reason in index.other_members[:MAX_LISTED]
    ]
    return ShardHealth(complete, expected, problems)


def complete_samples(
    index: ShardIndex,
    shard: str,
    required: Sequence[str] | None = None,
    on_bad: Literal["raise", "skip"] = "raise",
) -> tuple[NDArray[np.int64], list[ShardProblem]]:
    """Return the numbers of the complete samples and the problems of the others; with "raise", raise the first one."""
    health = check_samples(index, required)
    bad = [problem for problem in health.problems if problem.kind != "stray"]
    if on_bad == "raise" and bad:
        first = bad[0]
        others = f", and {len(bad) - 1} more problems" if len(bad) > 1 else ""
        raise PairingError(
            f"{first.kind} part: {first.reason}{others}",
            shard=shard,
            member=first.member,
            offset=first.offset,
            stage="pair",
            advice="List them all with 'penstock shards check', or skip and count them with on_bad='skip'.",
        )
    return np.flatnonzero(health.complete), bad


def _canonical_suffixes(index: ShardIndex) -> tuple[dict[str, int], NDArray[np.int64]]:
    """Return the distinct canonical suffixes of the shard with their ids, and the id of each part's suffix."""
    ids: dict[str, int] = {}
    id_of_suffix = [ids.setdefault(canonical_suffix(suffix), len(ids)) for suffix in index.suffixes]
    return ids, np.array(id_of_suffix, np.int64)[index.suffix_ids]


def _required_suffixes(required: Sequence[str]) -> tuple[str, ...]:
    suffixes = tuple(dict.fromkeys(canonical_suffix(suffix) for suffix in required))
    if not all(suffixes):
        raise SettingError("a required suffix is empty")
    return suffixes


def _common_suffixes(index: ShardIndex, suffixes: dict[str, int], suffix_ids: NDArray[np.int64]) -> tuple[str, ...]:
    """Return the suffixes that at least half of the samples have: if one of two has a mask, masks are expected."""
    count = max(1, len(suffixes))
    pairs = _sorted_unique(index.sample_ids * count + suffix_ids)
    samples_with = np.bincount(pairs % count, minlength=len(suffixes))
    return tuple(suffix for suffix, number in suffixes.items() if 2 * samples_with[number] >= len(index))


def _count_parts(index: ShardIndex, suffix_ids: NDArray[np.int64], expected_ids: list[int]) -> NDArray[np.int64]:
    """Return how many parts with each expected suffix each sample has, one column per suffix."""
    columns = [
        np.bincount(index.sample_ids[suffix_ids == number], minlength=len(index))
        if number >= 0
        else np.zeros(len(index))
        for number in expected_ids
    ]
    return np.stack(columns, axis=1).astype(np.int64) if columns else np.ones((len(index), 1), np.int64)


def _duplicates(
    index: ShardIndex, suffix_ids: NDArray[np.int64], matters: NDArray[np.bool_], problems: list[ShardProblem]
) -> NDArray[np.int64]:
    """Append the duplicate parts to the problems; return their samples, since it is unknown which part is meant."""
    sample_and_suffix = index.sample_ids * (int(suffix_ids.max(initial=0)) + 1) + suffix_ids
    order = np.argsort(sample_and_suffix, kind="stable")
    repeated = order[1:][sample_and_suffix[order][1:] == sample_and_suffix[order][:-1]]
    repeated = repeated[matters[repeated]]
    for part in repeated[:MAX_LISTED]:
        name, offset = index.member_name(part), int(index.offsets[part])
        problems.append(ShardProblem("duplicate", name, offset, "occurs more than once"))
    return _sorted_unique(index.sample_ids[repeated])


def _sorted_unique(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Do what `np.unique` does, which imports numpy.ma on its first call: 15 ms of every loader's first batch."""
    ordered = np.sort(numbers)
    return np.asarray(ordered[np.diff(ordered, prepend=ordered[:1] - 1) != 0])


def _missing_part_problem(index: ShardIndex, number: int, missing: list[str]) -> ShardProblem:
    sample = index.sample(number)
    first = sample.parts[0]
    kind: ProblemKind = "orphan" if len(sample.parts) == 1 else "incomplete"
    return ShardProblem(kind, sample.key + first.suffix, first.offset, f"sample has no {', '.join(missing)}")

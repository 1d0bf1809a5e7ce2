"""Which samples are whole, and what is wrong with the others. We never emit half a sample."""

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
"""Problems listed per shard; the counts go on."""


@dataclass(frozen=True, slots=True)
class ShardProblem:
    """One thing that is wrong, and where."""

    kind: ProblemKind
    member: str
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class ShardHealth:
    """The verdict on one shard's samples."""

    complete: NDArray[np.bool_]
    """For each sample, whether every expected part is there, once, and not empty."""
    expected: tuple[str, ...]
    """The roles a whole sample has."""
    problems: list[ShardProblem]

    @property
    def bad(self) -> int:
        """How many samples are not whole."""
        return int((~self.complete).sum())


def check_samples(index: ShardIndex, required: Sequence[str] | None = None) -> ShardHealth:
    """Judge every sample against the required suffixes, or else against what at least half of the samples have.

    Where suffixes are required, parts that nobody asked for spoil nothing.
    """
    roles, role_ids = _canonical_suffixes(index)
    expected = _required_suffixes(required) if required else _common_suffixes(index, roles, role_ids)
    numbers = [roles.get(role, -1) for role in expected]
    counts = _count_parts(index, role_ids, numbers)
    matters = np.isin(role_ids, numbers) if required else np.ones(len(role_ids), bool)
    problems: list[ShardProblem] = []
    duplicated = _duplicates(index, role_ids, matters, problems)
    missing = counts == 0
    whole = ~missing.any(axis=1)
    for number in np.flatnonzero(~whole)[:MAX_LISTED]:
        problems.append(
            _missing_part_problem(index, int(number), [expected[i] for i in np.flatnonzero(missing[number])])
        )
    empty = np.flatnonzero((index.lengths == 0) & matters)
    problems += [
        ShardProblem("empty", index.member_name(at), int(index.offsets[at]), "has no bytes")
        for at in empty[:MAX_LISTED]
    ]
    whole[duplicated] = False
    whole[index.sample_ids[empty]] = False
    problems += [
        ShardProblem("stray", name, offset, reason) for name, offset, reason in index.other_members[:MAX_LISTED]
    ]
    return ShardHealth(whole, expected, problems)


def complete_samples(
    index: ShardIndex,
    shard: str,
    required: Sequence[str] | None = None,
    on_bad: Literal["raise", "skip"] = "raise",
) -> tuple[NDArray[np.int64], list[ShardProblem]]:
    """The numbers of the whole samples, and what was skipped; under "raise" the first problem is an error."""
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
            advice="See them all with 'penstock shards check', or skip and count them with on_bad='skip'.",
        )
    return np.flatnonzero(health.complete), bad


def _canonical_suffixes(index: ShardIndex) -> tuple[dict[str, int], NDArray[np.int64]]:
    """The distinct roles of the shard, and for each part the number of its role."""
    roles: dict[str, int] = {}
    of_suffix = [roles.setdefault(canonical_suffix(suffix), len(roles)) for suffix in index.suffixes]
    return roles, np.array(of_suffix, np.int64)[index.suffix_ids]


def _required_suffixes(required: Sequence[str]) -> tuple[str, ...]:
    roles = tuple(dict.fromkeys(canonical_suffix(suffix) for suffix in required))
    if not all(roles):
        raise SettingError("a required suffix is empty")
    return roles


def _common_suffixes(index: ShardIndex, roles: dict[str, int], role_ids: NDArray[np.int64]) -> tuple[str, ...]:
    """The roles that at least half of the samples have: two of which one has a mask make one whole, not two."""
    pairs = _sorted_unique(index.sample_ids * max(1, len(roles)) + role_ids)
    samples_with = np.bincount(pairs % max(1, len(roles)), minlength=len(roles))
    return tuple(role for role, number in roles.items() if 2 * samples_with[number] >= len(index))


def _count_parts(index: ShardIndex, role_ids: NDArray[np.int64], wanted: list[int]) -> NDArray[np.int64]:
    """How many parts of each wanted role each sample has."""
    columns = [
        np.bincount(index.sample_ids[role_ids == number], minlength=len(index)) if number >= 0 else np.zeros(len(index))
        for number in wanted
    ]
    return np.stack(columns, axis=1).astype(np.int64) if columns else np.ones((len(index), 1), np.int64)


def _duplicates(
    index: ShardIndex, role_ids: NDArray[np.int64], matters: NDArray[np.bool_], problems: list[ShardProblem]
) -> NDArray[np.int64]:
    """Two parts in one role: nobody can say which one is meant, so their samples are not whole."""
    slots = index.sample_ids * (int(role_ids.max(initial=0)) + 1) + role_ids
    order = np.argsort(slots, kind="stable")
    again = order[1:][slots[order][1:] == slots[order][:-1]]
    again = again[matters[again]]
    for at in again[:MAX_LISTED]:
        problems.append(
            ShardProblem("duplicate", index.member_name(at), int(index.offsets[at]), "occurs more than once")
        )
    return _sorted_unique(index.sample_ids[again])


def _sorted_unique(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """As `np.unique`, which imports the masked arrays when first called: 15 ms of every loader's first batch."""
    ordered = np.sort(numbers)
    return np.asarray(ordered[np.diff(ordered, prepend=ordered[:1] - 1) != 0])


def _missing_part_problem(index: ShardIndex, number: int, missing: list[str]) -> ShardProblem:
    sample = index.sample(number)
    first = sample.parts[0]
    kind: ProblemKind = "orphan" if len(sample.parts) == 1 else "incomplete"
    return ShardProblem(kind, sample.key + first.suffix, first.offset, f"sample has no {', '.join(missing)}")

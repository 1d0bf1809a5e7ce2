"""Find the complete samples of a shard, and the problems of the others, so that no partial sample is ever delivered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from penstock.errors import PairingError, SettingError
from penstock.shards.index import ShardIndex
from penstock.shards.pairing import RequiredPart, alternatives, canonical_suffix, split_names
from penstock.shards.tar import IGNORED

ProblemKind = Literal["duplicate", "incomplete", "orphan", "empty", "unreadable", "stray"]
MAX_NAMED = 12
"""Suffixes named in a message."""


@dataclass(frozen=True, slots=True)
class ShardProblem:
    """One problem of a shard, with the member and the offset."""

    kind: ProblemKind
    member: str
    offset: int
    reason: str
    sample: int | None = None
    """Number of the sample that is not complete because of it; None for a stray member, which belongs to no sample."""


@dataclass(frozen=True, slots=True)
class ShardHealth:
    """Which samples of a shard are complete, and its problems."""

    complete: NDArray[np.bool_]
    """Whether each sample has every expected part exactly once, readable and not empty."""
    expected: tuple[str, ...]
    """The parts that a complete sample has: a canonical suffix each, or several joined by "or"."""
    problems: list[ShardProblem]
    """All problems. A sample may have several."""

    @property
    def bad(self) -> int:
        """Number of samples that are not complete."""
        return int((~self.complete).sum())

    def incomplete(self) -> list[tuple[int, ShardProblem]]:
        """Return the number of every sample that is not complete, in order, each once, with its first problem."""
        first: dict[int, ShardProblem] = {}
        for problem in self.problems:
            if problem.sample is not None:
                first.setdefault(problem.sample, problem)
        return [(number, first[number]) for number in sorted(first)]


def check_samples(
    index: ShardIndex,
    required: Sequence[RequiredPart] | None = None,
    optional: Sequence[RequiredPart] = (),
) -> ShardHealth:
    """Check every sample for the required parts, or else for the suffixes that at least half of the samples have.

    A sample may lack an optional part, but if it has it, then once, readable and not empty. With required parts, parts
    that are neither required nor optional cannot make a sample bad. Suffixes match whatever their case.
    """
    suffixes, suffix_ids = _canonical_suffixes(index)
    common = _common_suffixes(index, suffixes, suffix_ids) if required is None else ()
    expected = _required_parts(common if required is None else required)
    expected_ids = [[suffixes[suffix] for suffix in part if suffix in suffixes] for part in expected]
    matters = np.ones(index.part_count, bool)
    if required is not None:
        wanted = {suffix for part in (*expected, *_required_parts(optional)) for suffix in part}
        matters = np.isin(suffix_ids, [number for suffix, number in suffixes.items() if suffix in wanted])
    missing = _count_parts(index, suffix_ids, expected_ids) == 0
    problems = [
        *_unreadable_parts(index, matters),
        *_missing_parts(index, missing, expected),
        *_duplicates(index, suffix_ids, matters),
        *_empty_parts(index, matters),
    ]
    complete = np.ones(len(index), bool)
    complete[[problem.sample for problem in problems if problem.sample is not None]] = False
    problems += [
        ShardProblem("stray", name, offset, reason)
        for name, offset, reason in index.other_members
        if not reason.startswith(IGNORED)
    ]
    return ShardHealth(complete, tuple(" or ".join(part) for part in expected), problems)


def complete_samples(
    index: ShardIndex,
    shard: str,
    required: Sequence[RequiredPart] | None = None,
    on_bad: Literal["raise", "skip"] = "raise",
    *,
    optional: Sequence[RequiredPart] = (),
    skip_with: str = "on_error='skip'",
) -> tuple[NDArray[np.int64], list[ShardProblem]]:
    """Return the numbers of the complete samples, and one problem of each other sample; with "raise", raise the first.

    `skip_with` is the setting that the error names for skipping bad samples.
    """
    health = check_samples(index, required, optional)
    bad = [problem for _, problem in health.incomplete()]
    if on_bad == "raise" and bad:
        first, others = bad[0], len(bad) - 1
        more = f", and {others} more incomplete sample{'s' if others > 1 else ''}" if others else ""
        remedy = "Repack the shard without it"
        if first.kind in ("incomplete", "orphan"):
            remedy = f"This shard has parts {_name_suffixes(index)}. Name one of these"
        raise PairingError(
            f"{first.kind} part: {first.reason}{more}",
            shard=shard,
            member=first.member,
            offset=first.offset,
            stage="pair",
            advice=f"{remedy}, or skip and count such samples with {skip_with}",
        )
    return np.flatnonzero(health.complete), bad


def _name_suffixes(index: ShardIndex) -> str:
    """Return the suffixes of a shard for a message, the most frequent first, with those that pairing would infer."""
    names = [index.member_name(part) for part in range(index.part_count)]
    inferred = split_names(names)
    counts = np.bincount(inferred.suffix_ids, minlength=len(inferred.suffixes))
    frequent = [inferred.suffixes[number] for number in np.argsort(-counts, kind="stable")[:MAX_NAMED].tolist()]
    more = len(inferred.suffixes) - len(frequent)
    return ", ".join(frequent) + (f" and {more} more" if more else "")


def _canonical_suffixes(index: ShardIndex) -> tuple[dict[str, int], NDArray[np.int64]]:
    """Return the distinct canonical suffixes of the shard with their ids, and the id of each part's suffix."""
    ids: dict[str, int] = {}
    id_of_suffix = [ids.setdefault(canonical_suffix(suffix), len(ids)) for suffix in index.suffixes]
    return ids, np.array(id_of_suffix, np.int64)[index.suffix_ids]


def _required_parts(required: Sequence[RequiredPart]) -> list[tuple[str, ...]]:
    """Return the canonical suffixes of each required part, without repetitions."""
    spelled = [tuple(dict.fromkeys(map(canonical_suffix, alternatives(part)))) for part in required]
    if not all(part and all(part) for part in spelled):
        raise SettingError("a required suffix is empty")
    return list(dict.fromkeys(spelled))


def _common_suffixes(index: ShardIndex, suffixes: dict[str, int], suffix_ids: NDArray[np.int64]) -> tuple[str, ...]:
    """Return the suffixes that at least half of the samples have: if one of two has a mask, masks are expected."""
    count = max(1, len(suffixes))
    pairs = _sorted_unique(index.sample_ids * count + suffix_ids)
    samples_with = np.bincount(pairs % count, minlength=len(suffixes))
    return tuple(suffix for suffix, number in suffixes.items() if 2 * samples_with[number] >= len(index))


def _count_parts(index: ShardIndex, suffix_ids: NDArray[np.int64], expected_ids: list[list[int]]) -> NDArray[np.int64]:
    """Return how many parts of each expected kind each sample has, one column per kind."""
    columns = [
        np.bincount(index.sample_ids[np.isin(suffix_ids, numbers)], minlength=len(index)) for numbers in expected_ids
    ]
    return np.stack(columns, axis=1).astype(np.int64) if columns else np.ones((len(index), 1), np.int64)


def _sorted_unique(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Do what `np.unique` does, which imports numpy.ma on its first call: 15 ms of every loader's first batch."""
    ordered = np.sort(numbers)
    return np.asarray(ordered[np.diff(ordered, prepend=ordered[:1] - 1) != 0])


# -- the problems, one function per kind -------------------------------------------------------------------------------


def _unreadable_parts(index: ShardIndex, matters: NDArray[np.bool_]) -> Iterable[ShardProblem]:
    """Yield the parts whose data the shard does not have in a form that can be read."""
    for part in np.flatnonzero(index.is_unreadable & matters).tolist():
        yield _part_problem(index, part, "unreadable", index.unreadable[int(index.offsets[part])])


def _missing_parts(
    index: ShardIndex, missing: NDArray[np.bool_], expected: list[tuple[str, ...]]
) -> Iterable[ShardProblem]:
    """Yield one problem for each sample that lacks expected parts, with all that it lacks."""
    reasons: dict[bytes, str] = {}
    for number in np.flatnonzero(missing.any(axis=1)).tolist():
        row = missing[number]
        if row.tobytes() not in reasons:
            lacking = [" or ".join(expected[column]) for column in np.flatnonzero(row)]
            reasons[row.tobytes()] = f"sample has no {', '.join(lacking)}"
        first, last = index.starts[number : number + 2].tolist()
        kind: ProblemKind = "orphan" if last - first == 1 else "incomplete"
        yield _part_problem(index, first, kind, reasons[row.tobytes()])


def _duplicates(index: ShardIndex, suffix_ids: NDArray[np.int64], matters: NDArray[np.bool_]) -> Iterable[ShardProblem]:
    """Yield the parts that their sample has already: it is unknown which of them is meant."""
    sample_and_suffix = index.sample_ids * (int(suffix_ids.max(initial=0)) + 1) + suffix_ids
    order = np.argsort(sample_and_suffix, kind="stable")
    repeated = order[1:][sample_and_suffix[order][1:] == sample_and_suffix[order][:-1]]
    for part in repeated[matters[repeated]].tolist():
        yield _part_problem(index, part, "duplicate", "occurs more than once")


def _empty_parts(index: ShardIndex, matters: NDArray[np.bool_]) -> Iterable[ShardProblem]:
    for part in np.flatnonzero((index.lengths == 0) & matters & ~index.is_unreadable).tolist():
        yield _part_problem(index, part, "empty", "has no bytes")


def _part_problem(index: ShardIndex, part: int, kind: ProblemKind, reason: str) -> ShardProblem:
    return ShardProblem(kind, index.member_name(part), int(index.offsets[part]), reason, int(index.sample_ids[part]))

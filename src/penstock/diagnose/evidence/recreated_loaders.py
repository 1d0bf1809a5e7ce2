"""A loader that the script makes anew for every epoch is one loader with many passes.

Such a run has many loaders of a few steps each, none of which says much, and each starts its workers as if it were the
first. Those that are alike in all settings and were iterated over one after the other are taken together.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

import msgspec

from penstock.recording.format import (
    EpochEndLine,
    EpochStartLine,
    FetchLine,
    HopsLine,
    LoaderLine,
    StackSamplesLine,
    StepLine,
    StorageLine,
)
from penstock.recording.reader import Recording

OfLoader = TypeVar(
    "OfLoader", EpochStartLine, EpochEndLine, StepLine, FetchLine, StackSamplesLine, HopsLine, StorageLine
)


@dataclass(frozen=True)
class RecreatedLoaders:
    """Which loaders of a recording are one, and what their lines are to be called."""

    loaders: dict[int, int]
    """Of each that was made more than once, the first of its kind."""
    passes: dict[tuple[int, int], int]
    """Loader and pass, as recorded → the pass of the first."""

    def times_made(self, loader: int) -> int:
        """How often the script made this one, the first of its kind."""
        return max(1, sum(first == loader for first in self.loaders.values()))

    def as_one(self, recording: Recording) -> Recording:
        """The recording as it would be had the script made each of its loaders once."""
        if not self.loaders:
            return recording
        kept = {number for number in recording.loaders if self.loaders.get(number, number) == number}
        return replace(
            recording,
            loaders={number: loader for number, loader in recording.loaders.items() if number in kept},
            passes=tuple(map(self._called, recording.passes)),
            pass_ends=tuple(map(self._called, recording.pass_ends)),
            steps=tuple(map(self._called, recording.steps)),
            fetches=tuple(map(self._called, recording.fetches)),
            whereabouts=tuple(map(self._called, recording.whereabouts)),
            hops=tuple(map(self._called, recording.hops)),
            storage=tuple(map(self._called, recording.storage)),
        )

    def _called(self, line: OfLoader) -> OfLoader:
        if line.loader not in self.loaders:
            return line
        changes: dict[str, Any] = {"loader": self.loaders[line.loader]}
        if isinstance(line, EpochStartLine | EpochEndLine):
            changes["number"] = self.passes.get((line.loader, line.number), line.number)
        elif isinstance(line, StepLine | FetchLine):
            changes["pass_"] = self.passes.get((line.loader, line.pass_), line.pass_)
        return msgspec.structs.replace(line, **changes)


def find_recreated_loaders(recording: Recording) -> RecreatedLoaders:
    """Loaders that are alike and follow one another."""
    loaders: dict[int, int] = {}
    passes: dict[tuple[int, int], int] = {}
    for alike in _kinds(recording):
        mine = sorted((p for p in recording.passes if p.loader in alike), key=lambda p: p.at_s)
        if len(alike) < 2 or not _in_turn(recording, mine):
            continue
        loaders |= dict.fromkeys(alike, min(alike))
        passes |= {(each.loader, each.number): number for number, each in enumerate(mine)}
    return RecreatedLoaders(loaders, passes)


def _kinds(recording: Recording) -> list[set[int]]:
    """Loaders of torch's that differ in their number only."""
    found: dict[bytes, set[int]] = defaultdict(set)
    for number, loader in recording.loaders.items():
        if loader.type == "torch":
            found[_kind(loader)].add(number)
    return list(found.values())


def _kind(loader: LoaderLine) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(loader, loader=0), order="sorted")


def _in_turn(recording: Recording, passes: list[EpochStartLine]) -> bool:
    """Whether each was over before the next began: two that run side by side are two."""
    last: dict[tuple[int, int], float] = {}
    for step in recording.steps:
        last[step.loader, step.pass_] = step.at_s + step.wait_s
    return all(last.get((one.loader, one.number), one.at_s) <= other.at_s for one, other in pairwise(passes))

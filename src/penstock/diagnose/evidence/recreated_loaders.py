"""Joins the loaders of a script that creates its DataLoader anew for every epoch into one loader with many epochs.

Such a run records many loaders with a few steps each, too few for a judgement, and each starts its workers as if it
were the first. Loaders that are equal in all settings and were iterated over one after the other are joined.
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

LineT = TypeVar("LineT", EpochStartLine, EpochEndLine, StepLine, FetchLine, StackSamplesLine, HopsLine, StorageLine)


@dataclass(frozen=True)
class RecreatedLoaders:
    """Which loaders of a recording are one loader, and the numbers that their lines get when they are joined."""

    loaders: dict[int, int]
    """Number of each loader that was created repeatedly → number of the first one equal to it."""
    epochs: dict[tuple[int, int], int]
    """(loader, epoch) as recorded → epoch of the joined loader."""

    def times_created(self, loader: int) -> int:
        """Return how many times the script created a loader, given the number of the first."""
        return max(1, sum(first == loader for first in self.loaders.values()))

    def join(self, recording: Recording) -> Recording:
        """Return the recording as if the script had created each of its loaders once."""
        if not self.loaders:
            return recording
        kept = {number for number in recording.loaders if self.loaders.get(number, number) == number}
        return replace(
            recording,
            loaders={number: loader for number, loader in recording.loaders.items() if number in kept},
            epochs=tuple(map(self._renumber, recording.epochs)),
            epoch_ends=tuple(map(self._renumber, recording.epoch_ends)),
            steps=tuple(map(self._renumber, recording.steps)),
            fetches=tuple(map(self._renumber, recording.fetches)),
            stack_samples=tuple(map(self._renumber, recording.stack_samples)),
            hops=tuple(map(self._renumber, recording.hops)),
            storage=tuple(map(self._renumber, recording.storage)),
        )

    def _renumber(self, line: LineT) -> LineT:
        if line.loader not in self.loaders:
            return line
        changes: dict[str, Any] = {"loader": self.loaders[line.loader]}
        if isinstance(line, EpochStartLine | EpochEndLine | StepLine | FetchLine):
            changes["epoch"] = self.epochs.get((line.loader, line.epoch), line.epoch)
        return msgspec.structs.replace(line, **changes)


def find_recreated_loaders(recording: Recording) -> RecreatedLoaders:
    """Return the loaders that are equal and follow one another."""
    loaders: dict[int, int] = {}
    epochs: dict[tuple[int, int], int] = {}
    for equal in _equal_loaders(recording):
        starts = sorted((start for start in recording.epochs if start.loader in equal), key=lambda start: start.at_s)
        if len(equal) < 2 or not _one_after_the_other(recording, starts):
            continue
        loaders |= dict.fromkeys(equal, min(equal))
        epochs |= {(start.loader, start.epoch): number for number, start in enumerate(starts)}
    return RecreatedLoaders(loaders, epochs)


def _equal_loaders(recording: Recording) -> list[set[int]]:
    """Group the DataLoaders of torch that differ in their number only."""
    groups: dict[bytes, set[int]] = defaultdict(set)
    for number, loader in recording.loaders.items():
        if loader.type == "torch":
            groups[_without_number(loader)].add(number)
    return list(groups.values())


def _without_number(loader: LoaderLine) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(loader, loader=0), order="sorted")


def _one_after_the_other(recording: Recording, starts: list[EpochStartLine]) -> bool:
    """Return whether each epoch had its last batch before the next one began: loaders in parallel are not one."""
    last_s: dict[tuple[int, int], float] = {}
    for step in recording.steps:
        last_s[step.loader, step.epoch] = step.at_s + step.wait_s
    return all(last_s.get((a.loader, a.epoch), a.at_s) <= b.at_s for a, b in pairwise(starts))

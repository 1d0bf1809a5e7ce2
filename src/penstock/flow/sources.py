"""Where an epoch's samples come from: shards, or several lots of them with a weight each."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.errors import SettingError
from penstock.storage.paths import expand
from penstock.storage.remote.url import apart

Shards = (
    str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | Mapping[str, float] | Mapping[os.PathLike[str], float]
)
"""What `expand` takes; or what it takes as a string, with the share of the samples that is to come from there."""


@dataclass(frozen=True)
class Source:
    """Shards whose samples are drawn together."""

    paths: Sequence[str]
    name: str = ""
    """As the user wrote it, but for the query of a web address."""
    weight: float = 1.0


def find_sources(shards: Shards) -> list[Source]:
    """One source; of a mapping, one for each entry."""
    if not isinstance(shards, Mapping):
        return [Source(expand(shards))]
    if not shards:
        raise SettingError("a mixture needs sources", advice='For example {"web/*.tar": 3, "own/*.tar": 1}')
    named = [(name, apart(str(name))[0], weight) for name, weight in shards.items()]
    sources = [Source(expand(name), written, _weight(written, weight)) for name, written, weight in named]
    _check_apart(sources)
    return sources


def _weight(name: str, weight: object) -> float:
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
        raise SettingError(
            f"the weight of {name!r} is {weight!r}, not a number above 0",
            advice="Leave a source out to give it no weight",
        )
    return float(weight)


def _check_apart(sources: Sequence[Source]) -> None:
    """A shard in two sources would have two weights."""
    owners: dict[str, Source] = {}
    for source in sources:
        for path in source.paths:
            owner = owners.setdefault(os.path.realpath(path), source)
            if owner is not source:
                raise SettingError(f"is in two sources, {owner.name!r} and {source.name!r}", shard=path)

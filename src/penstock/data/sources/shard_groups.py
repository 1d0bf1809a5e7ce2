"""The shards that the user named, expanded to paths, with weights where there are several groups of them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.errors import SettingError
from penstock.storage.object_store.url import split_query
from penstock.storage.paths import expand_shard_paths

Shards = (
    str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | Mapping[str, float] | Mapping[os.PathLike[str], float]
)
"""Patterns or paths as `expand_shard_paths` takes them; or a mapping from pattern to weight.

A weight is the share of the samples that come from there, relative to the other weights."""


@dataclass(frozen=True)
class ShardGroup:
    """Shards that share one weight."""

    paths: Sequence[str]
    name: str = ""
    """The pattern as the user wrote it, without the query of a web address."""
    weight: float = 1.0


def find_shard_groups(shards: Shards) -> list[ShardGroup]:
    """Return one group; of a mapping, one for each entry."""
    if not isinstance(shards, Mapping):
        return [ShardGroup(expand_shard_paths(shards))]
    if not shards:
        raise SettingError("a mixture needs groups of shards", advice='For example {"web/*.tar": 3, "own/*.tar": 1}')
    named = [(pattern, split_query(str(pattern))[0], weight) for pattern, weight in shards.items()]
    groups = [ShardGroup(expand_shard_paths(pattern), name, _weight(name, weight)) for pattern, name, weight in named]
    _check_disjoint(groups)
    return groups


def _weight(name: str, weight: object) -> float:
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
        raise SettingError(
            f"the weight of {name!r} is {weight!r}, not a number above 0",
            advice="Leave a group out to give it no weight",
        )
    return float(weight)


def _check_disjoint(groups: Sequence[ShardGroup]) -> None:
    """Refuse a shard that is in two groups: it would have two weights."""
    owners: dict[str, ShardGroup] = {}
    for group in groups:
        for path in group.paths:
            owner = owners.setdefault(os.path.realpath(path), group)
            if owner is not group:
                raise SettingError(f"is in two groups, {owner.name!r} and {group.name!r}", shard=path)


def weights_text(groups: Sequence[ShardGroup]) -> str:
    """Return the weights as 3:1. The weight of a single group has no effect, so it is always 1."""
    weights = [group.weight for group in groups] if len(groups) > 1 else [1.0]
    return ":".join(repr(weight).removesuffix(".0") for weight in weights)

"""Where a loader is, as a plain dict that survives JSON; and whether a dict from elsewhere is of the same data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import SettingError

VERSION = 1

Identity = Mapping[str, str | int | bool]
"""What decides an epoch's order, by name: a position means the same samples only where all of it is the same."""


@dataclass(frozen=True, slots=True)
class Position:
    """Samples of the epoch delivered so far, over all ranks together: so another number of ranks can go on from it."""

    epoch: int = 0
    samples: int = 0
    under_way: bool = False
    """Whether a pass has begun and not ended."""


def write_state(at: Position, identity: Identity) -> dict[str, Any]:
    """Numbers and strings only."""
    return {"version": VERSION, "epoch": at.epoch, "position": at.samples, **identity}


def read_state(state: Mapping[str, Any], identity: Identity) -> Position:
    """The position, if it is one of this data in this order; else what is different."""
    if state.get("version") != VERSION:
        raise SettingError(f"a state of version {state.get('version')!r} cannot be read by this Penstock")
    for name, ours in identity.items():
        theirs = state.get(name)
        if theirs != ours:
            raise _other(name, theirs, ours)
    epoch, position = _count(state, "epoch"), _count(state, "position")
    if "samples" in identity and position > _count(identity, "samples"):
        raise SettingError(f"a state at position {position} is past the end of the epoch")
    return Position(epoch, position)


def _count(state: Mapping[str, Any], name: str) -> int:
    value = state.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise SettingError(f"a state with {name} {value!r} makes no sense")
    return value


def _other(name: str, theirs: Any, ours: str | int | bool) -> SettingError:
    why = "the shards or their samples are not the same"
    if name != "fingerprint":
        why = f"it was made with {name} {theirs!r}, this loader has {ours!r}"
    return SettingError(
        f"the state is of another dataset or order: {why}",
        advice="Resume with the shards and settings it was saved with, or start the epoch anew",
    )

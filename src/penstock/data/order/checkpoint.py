"""A loader's position in its epoch as a plain dict that survives JSON, and the check that a dict fits the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import SettingError

VERSION = 1
ORDER_LANES, ORDER_SAMPLER = "lanes", "sampler_state"
"""Names of what a state holds about the order of its epoch: the number of lanes, or the state of the user's sampler.

The epoch is ended in that order, also if the loader would choose another one by now: then no sample is lost."""

Identity = Mapping[str, str | int | bool]
"""The settings and data that decide an epoch's order, by name.

A position means the same samples only where all of them are the same."""
Order = Mapping[str, Any]
"""The part of a state that a source needs to repeat the order of an epoch: `ORDER_LANES`, `ORDER_SAMPLER`, or none."""


@dataclass(frozen=True, slots=True)
class Position:
    """A position in an epoch. It counts samples over all ranks, so a run can be resumed on another number of ranks."""

    epoch: int = 0
    samples: int = 0
    """Samples of the epoch delivered so far, over all ranks."""
    in_progress: bool = False
    """Whether an iteration over the epoch has begun and not ended."""
    order: Order | None = None
    """The order of this epoch; None for one that has not begun, whose order follows from the settings."""


def write_state(position: Position, identity: Identity) -> dict[str, Any]:
    """Return the position as a dict of numbers and strings."""
    order = position.order or {}
    return {"version": VERSION, "epoch": position.epoch, "position": position.samples, **identity, **order}


def read_state(state: Mapping[str, Any], identity: Identity) -> Position:
    """Return the position in a state; raise a SettingError if its data or order is another."""
    if state.get("version") != VERSION:
        raise SettingError(f"a state of version {state.get('version')!r} cannot be read by this Penstock")
    for name, expected in identity.items():
        found = state.get(name)
        if found != expected:
            raise _different(name, found, expected)
    epoch, position = _count(state, "epoch"), _count(state, "position")
    if "samples" in identity and position > _count(identity, "samples"):
        raise SettingError(f"a state at position {position} is past the end of the epoch")
    return Position(epoch, position, order=_read_order(state))


def _read_order(state: Mapping[str, Any]) -> Order:
    """Return what the state holds about the order of its epoch."""
    order: dict[str, Any] = {}
    if ORDER_LANES in state:
        order[ORDER_LANES] = _count(state, ORDER_LANES, least=1)
    if ORDER_SAMPLER in state:
        if not isinstance(state[ORDER_SAMPLER], Mapping):
            raise SettingError(f"{ORDER_SAMPLER} in a state is not a mapping")
        order[ORDER_SAMPLER] = state[ORDER_SAMPLER]
    return order


def _count(state: Mapping[str, Any], name: str, least: int = 0) -> int:
    value = state.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SettingError(f"{name} {value!r} in a state is not a whole number of at least {least}")
    return value


def _different(name: str, found: Any, expected: str | int | bool) -> SettingError:
    reason = "the shards or their samples are not the same"
    if name != "fingerprint":
        reason = f"it was made with {name} {found!r}, this loader has {expected!r}"
    return SettingError(
        f"the state is of another dataset or order: {reason}",
        advice="Resume with the shards and settings it was saved with, or start the epoch anew",
    )

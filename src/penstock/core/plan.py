"""What a plan says: which settings to change, why, and what each should give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Scope = Literal["dataloader", "loader", "data", "step"]
"""Who is set: torch's DataLoader, penstock.Loader, the files themselves, the training step."""
Profile = Literal["balanced", "speed", "memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One setting, and what changing it alone should give."""

    scope: Scope
    name: str
    now: Any
    """None where it is not known."""
    then: Any
    reason: str
    """One sentence with its numbers."""
    gain: float | None = None
    """More samples per second, by this change alone: 0.5 is half as many again; None where no model can say."""
    cost: str = ""
    """What it takes: bytes, hours, memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputLimit:
    """No more than `samples_s`, because of one resource."""

    name: str
    samples_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that is proposed for one training on one machine."""

    source: Literal["recording", "probes", "dataset"]
    fingerprint: Mapping[str, Any]
    """Of the machine and the data it was made for: elsewhere it is somebody else's plan."""
    profile: Profile = "balanced"
    samples_s: float | None = None
    """As it runs now, measured; where nothing was run, as the model has it for the settings of now."""
    planned_samples_s: float | None = None
    """With all changes to the scopes `dataloader` and `step` that have a gain."""
    limits: tuple[ThroughputLimit, ...] = ()
    """The one that binds first, then the next."""
    most_gain: float | None = None
    """The most that any change to the supply of data could give: then the step alone sets the pace."""
    wait_share: float | None = None
    """Of the steady time as it runs now, waiting for a batch that was not ready; None where that was not seen."""
    memory_bytes: int | None = None
    """That the planned loader needs on the host."""
    changes: tuple[Change, ...] = ()
    """The one with the largest gain first."""
    dataloader: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments for torch's DataLoader."""
    loader: Mapping[str, Any] = field(default_factory=dict)
    """Keys of a config for penstock.Loader."""
    notes: tuple[str, ...] = ()
    """What could not be known, and what was left alone on purpose."""


def nested_settings(changes: Iterable[Change]) -> dict[str, Any]:
    """Return the new value of each change by its name; `reading.num_readers` names a key of a nested mapping."""
    settings: dict[str, Any] = {}
    for change in changes:
        *groups, name = change.name.split(".")
        into = settings
        for group in groups:
            into = into.setdefault(group, {})
        into[name] = change.then
    return settings

"""The types of a plan: which settings to change, why, and the gain that each change is predicted to give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

TORCH_PREFETCH_FACTOR = 2
"""The `prefetch_factor` that torch's DataLoader uses where workers are set and it is not."""

Scope = Literal["dataloader", "loader", "data", "step"]
"""The subject of a change: torch's DataLoader, penstock.Loader, the data files, or the training step."""
Profile = Literal["balanced", "speed", "memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One setting to change, and the gain of changing it alone."""

    scope: Scope
    name: str
    now: Any
    """The current value; None where it is not known."""
    then: Any
    """The proposed value."""
    reason: str
    """One sentence with its numbers."""
    gain: float | None = None
    """Relative increase of the rate by this change alone: 0.5 means 1.5 times the rate; None without a model."""
    cost: str = ""
    """The price of the change: bytes, hours, memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputLimit:
    """An upper bound on the rate that one resource sets."""

    name: str
    samples_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that is proposed for one training on one machine."""

    source: Literal["recording", "probes", "dataset"]
    fingerprint: Mapping[str, Any]
    """Identifies the machine and the dataset; on another machine the numbers do not hold."""
    profile: Profile = "balanced"
    samples_s: float | None = None
    """Current samples per second: measured, or by the model for the current settings where nothing was run."""
    planned_samples_s: float | None = None
    """Samples per second with all changes of the scopes `dataloader` and `step` that have a gain."""
    limits: tuple[ThroughputLimit, ...] = ()
    """Upper bounds on the rate, the lowest first."""
    most_gain: float | None = None
    """The gain at which the training step alone limits the rate: no change to loading can give more."""
    wait_share: float | None = None
    """Share of the steady time in which the loop waits for a batch that is not ready; None if not recorded."""
    memory_bytes: int | None = None
    """Host memory that the planned loader needs."""
    changes: tuple[Change, ...] = ()
    """Sorted by gain, the largest first."""
    dataloader: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments for torch's DataLoader."""
    loader: Mapping[str, Any] = field(default_factory=dict)
    """Keys of a configuration for penstock.Loader."""
    notes: tuple[str, ...] = ()
    """Sentences about what could not be determined, and what was deliberately not changed."""


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

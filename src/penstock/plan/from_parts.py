"""A plan for a training that was not run: what the model makes of its parts, each measured by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

from penstock.core.plan import Change, Plan, Profile
from penstock.model.workload import Workload
from penstock.plan.proposal import propose
from penstock.plan.scenario import LoaderSettings, TrainingContext

TORCHS_OWN = LoaderSettings(num_workers=0)
"""What a DataLoader has that nobody has set."""
NO_STEP = "No step is known: this is loading alone, as fast as it can be. With a step fewer workers may be enough"


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredParts:
    """What was measured, put together as a loader with the settings that it has now."""

    source: Literal["probes", "dataset"]
    workload: Workload
    settings: LoaderSettings
    place: TrainingContext
    samples_per_batch: float
    fingerprint: Mapping[str, Any]
    loader_changes: tuple[Change, ...] = ()
    """For penstock.Loader."""
    notes: tuple[str, ...] = ()


def plan_from_parts(parts: MeasuredParts, profile: Profile = "balanced") -> Plan:
    """Gains count from what the model says of the settings as they are, because nothing was run."""
    found = propose(parts.workload, parts.settings, parts.place, profile, samples_per_batch=parts.samples_per_batch)
    now, then = found.now, found.then
    changes = sorted(found.changes, key=lambda change: change.gain or 0.0, reverse=True)
    return Plan(
        source=parts.source,
        fingerprint=parts.fingerprint,
        profile=profile,
        samples_s=_finite(now.samples_s),
        planned_samples_s=_finite(then.samples_s),
        limits=then.prediction.limits,
        most_gain=_finite(now.prediction.most_gain),
        memory_bytes=None if found.need is None else found.need.total_bytes,
        changes=(*changes, *parts.loader_changes),
        dataloader=found.kwargs,
        loader={change.name: change.then for change in parts.loader_changes},
        notes=(*parts.notes, *_notes(parts, now.samples_s), *found.notes),
    )


def _notes(parts: MeasuredParts, samples_s: float) -> tuple[str, ...]:
    workers = parts.settings.num_workers
    whose = "torch's defaults (no workers)" if not workers else f"{workers} workers, as it is set"
    told = f"Nothing was run: {samples_s:,.3g} samples/s is what the model says of {whose}, and gains count from there"
    return (told,) if parts.workload.step_s.any() else (told, NO_STEP)


def _finite(number: float) -> float | None:
    return number if number < inf else None

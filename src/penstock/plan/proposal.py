"""Settings for torch's DataLoader: each with its reason and what it should give; what gives nothing is left alone.

A setting is asked about after those before it are decided, so nothing is proposed that the others have made useless.
The gain that is told is that of the change alone or, where it gives something only after the others, of that. Nothing
is proposed that does not fit into memory. Without a gain a change is made only to save memory: because it was asked
for (profile `memory`) or because the settings in force cannot fit.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from penstock.core.plan import Change, Profile
from penstock.model.workload import Workload
from penstock.plan.memory import MemoryNeed
from penstock.plan.predict import thinned
from penstock.plan.profiles import profile_goal
from penstock.plan.scenario import LoaderSettings, Scenario, TrainingContext
from penstock.plan.setting_changes import KNOBS, ProposalBuilder


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What to set, and what it should give."""

    changes: tuple[Change, ...]
    kwargs: dict[str, Any]
    """For the DataLoader; `worker_threads` is for what its workers do at their start."""
    now: Scenario
    then: Scenario
    gain: float
    """Of all changes together."""
    need: MemoryNeed | None
    """Memory, then."""
    notes: tuple[str, ...]
    """What was left alone, and why."""


def propose(
    workload: Workload,
    settings: LoaderSettings,
    place: TrainingContext,
    profile: Profile = "balanced",
    *,
    samples_per_batch: float = 1.0,
    measured_batches_s: float = 0.0,
    pinned: Collection[str] = (),
) -> Proposal:
    """For a run as it was seen. Settings named in `pinned` stay as they are, and a note says what would have been.

    Gains count from the rate that was measured, where it is given and the model says less.
    """
    now = Scenario(
        workload=thinned(workload),
        settings=settings,
        place=place,
        goal=profile_goal(profile),
        samples_per_batch=samples_per_batch,
        measured_batches_s=measured_batches_s,
    )
    desk = ProposalBuilder(now=now, then=now, pinned=frozenset(pinned))
    for knob in KNOBS:
        knob(desk)
    return Proposal(
        changes=tuple(desk.changes),
        kwargs=_kwargs(desk),
        now=now,
        then=desk.then,
        gain=desk.then.gain_over(now),
        need=desk.then.need,
        notes=tuple(desk.notes),
    )


def _kwargs(desk: ProposalBuilder) -> dict[str, Any]:
    """All that is known of the loader, changed or not, so that it may stand alone."""
    settings = desk.then.settings
    found: dict[str, Any] = {"num_workers": settings.num_workers, "pin_memory": settings.pin_memory}
    if settings.num_workers:
        found |= {
            "prefetch_factor": settings.prefetch_factor,
            "persistent_workers": settings.persistent_workers,
        }
    if not settings.in_order:
        found["in_order"] = False
    for change in desk.changes:
        if change.name in ("multiprocessing_context", "worker_threads"):
            found[change.name] = change.then
    return found

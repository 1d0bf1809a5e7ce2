"""A proposal of settings for torch's DataLoader, each with its reason and its predicted gain.

Each setting is decided after those before it, so nothing is proposed that the earlier changes have made useless. A
setting whose change gains nothing is left alone, and nothing is proposed that does not fit into memory. Without a gain
a change is proposed only to save memory: because the profile `memory` asks for it, or because the current settings
cannot fit.
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
from penstock.plan.setting_changes import SETTING_CHANGES, ProposalBuilder


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The proposed changes to a DataLoader, and the scenarios before and after them."""

    changes: tuple[Change, ...]
    kwargs: dict[str, Any]
    """Keyword arguments for the DataLoader; `worker_threads` applies to the start of its workers."""
    now: Scenario
    then: Scenario
    gain: float
    """Gain of all changes together."""
    need: MemoryNeed | None
    """Memory that the proposed settings need."""
    notes: tuple[str, ...]
    """Settings that were left alone, and why."""


def propose(
    workload: Workload,
    settings: LoaderSettings,
    context: TrainingContext,
    profile: Profile = "balanced",
    *,
    samples_per_batch: float = 1.0,
    measured_batches_s: float = 0.0,
    pinned: Collection[str] = (),
) -> Proposal:
    """Propose settings for a run with this workload and these settings.

    Settings named in `pinned` stay as they are, and a note says what the change would have given. Gains are relative to
    the measured rate where it is given and the predicted one is lower.
    """
    now = Scenario(
        workload=thinned(workload),
        settings=settings,
        context=context,
        goal=profile_goal(profile),
        samples_per_batch=samples_per_batch,
        measured_batches_s=measured_batches_s,
    )
    builder = ProposalBuilder(now=now, then=now, pinned=frozenset(pinned))
    for change_setting in SETTING_CHANGES:
        change_setting(builder)
    return Proposal(
        changes=tuple(builder.changes),
        kwargs=_kwargs(builder),
        now=now,
        then=builder.then,
        gain=builder.then.gain_over(now),
        need=builder.then.need,
        notes=tuple(builder.notes),
    )


def _kwargs(builder: ProposalBuilder) -> dict[str, Any]:
    """Return all known settings, changed or not, so that the keyword arguments are complete by themselves."""
    settings = builder.then.settings
    kwargs: dict[str, Any] = {"num_workers": settings.num_workers, "pin_memory": settings.pin_memory}
    if settings.num_workers:
        kwargs |= {
            "prefetch_factor": settings.prefetch_factor,
            "persistent_workers": settings.persistent_workers,
        }
    if not settings.in_order:
        kwargs["in_order"] = False
    for change in builder.changes:
        if change.name in ("multiprocessing_context", "worker_threads"):
            kwargs[change.name] = change.then
    return kwargs

"""Makes a plan from a diagnosis: the measured rate, the limits, the changes to make, and notes on what is not known.

The plan is made for the loader with the longest waits. It uses the evidence and the answers of the rules that the
diagnosis holds, so that a plan and a diagnosis of one recording never disagree about a cause.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from math import inf, isnan
from typing import Any

import numpy as np

from penstock.core.arrays import mean
from penstock.core.plan import Change, Plan, Profile, ThroughputLimit, nested_settings
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.suspect import RuledOut
from penstock.diagnose.verdict import STEPS_MIN, LoaderDiagnosis, RunDiagnosis
from penstock.model.edits import with_step, with_workers
from penstock.plan.data_changes import data_changes
from penstock.plan.fingerprint import fingerprint
from penstock.plan.loader_changes import loader_changes
from penstock.plan.profiles import profile_goal
from penstock.plan.proposal import Proposal, propose
from penstock.plan.scenario_from_evidence import (
    observed_context,
    observed_settings,
    observed_workload,
    samples_per_batch,
)
from penstock.plan.setting_changes import MIN_GAIN
from penstock.plan.step_changes import in_use_text, step_changes
from penstock.recording.format import LoaderLine

MODEL_ERROR = 0.15
"""Relative error of the model on the run as it was, above which a note gives both numbers."""
MIN_STEP_SHARE = 0.05
"""Share of a step that no change removes."""
LESS_MEMORY = "less memory"
"""How the cost of a change ends that is proposed because it saves memory, whatever it gains."""
STEP_SETTINGS = ("pin_memory", "worker_threads")
"""Settings that make the step itself shorter."""
_OTHER_LOADERS = {
    "penstock": "penstock.Loader sets its readers, workers and look-ahead itself while it runs",
    "penstock.DataLoader": "The loader is a penstock.DataLoader: penstock.tune measures its settings",
    "iterable": "The loader is not a torch DataLoader: it has no settings to propose",
}
"""The reason why no settings are proposed, by the type of the loader."""


def plan_from_diagnosis(
    run: RunDiagnosis,
    profile: Profile = "balanced",
    *,
    pinned: Collection[str] = (),
    batch_bytes: int | None = None,
) -> Plan:
    """Return the plan for the loader of a run that has the longest waits.

    Settings of the DataLoader named in `pinned` stay as they are. A recording does not hold the size of a batch in
    memory: without `batch_bytes` it is assumed to be the bytes read for it, which decoded images exceed.
    """
    profile_goal(profile)  # raises for an unknown profile before anything else is done
    if run.steady_loader is None:
        return _empty_plan(run, profile)
    loader, evidence = run.steady_loader, run.steady_loader.evidence
    proposal, notes = _proposal(loader, profile, pinned, batch_bytes)
    changes_of_loader, dataloader = _agreeing(loader, proposal, pinned)
    changes_of_step = step_changes(loader)
    other_changes = (*changes_of_step, *data_changes(loader), *loader_changes(loader))
    changes = (*changes_of_loader, *other_changes)
    per_batch = samples_per_batch(evidence)
    most_gain = _most_gain(loader, proposal)
    return Plan(
        source="recording",
        fingerprint=fingerprint(run.recording.run.machine, evidence.loader),
        profile=profile,
        samples_s=_known_rate(_batches_s(evidence, proposal) * per_batch),
        planned_samples_s=_known_rate(
            _planned_batches_s(loader, proposal, changes_of_loader, changes_of_step) * per_batch
        ),
        limits=_limits(evidence, proposal, per_batch),
        most_gain=most_gain,
        wait_share=evidence.starved_share,
        memory_bytes=proposal.need.total_bytes if proposal and proposal.need else None,
        changes=tuple(sorted(changes, key=lambda change: -inf if change.gain is None else change.gain, reverse=True)),
        dataloader=dataloader,
        loader=nested_settings(change for change in other_changes if change.scope == "loader"),
        notes=(*run.recording.notes, *notes, *_notes(evidence, proposal, batch_bytes, per_batch, most_gain)),
    )


def _empty_plan(run: RunDiagnosis, profile: Profile) -> Plan:
    """Return a plan without changes for a run that is too short."""
    steps = max((len(loader.evidence.loop.steps) for loader in run.loaders), default=0)
    return Plan(
        source="recording",
        fingerprint=fingerprint(run.recording.run.machine, run.loaders[0].evidence.loader if run.loaders else None),
        profile=profile,
        notes=(*run.recording.notes, f"{steps} steps are too few to plan from: let it train for {5 * STEPS_MIN}"),
    )


def _why_no_settings(loader: LoaderLine) -> str:
    kind = loader.type
    if kind == "penstock" and "prefetch_factor" in loader.settings:  # an argument of torch's DataLoader
        kind = "penstock.DataLoader"
    return _OTHER_LOADERS.get(kind, _OTHER_LOADERS["iterable"])


def _proposal(
    loader: LoaderDiagnosis, profile: Profile, pinned: Collection[str], batch_bytes: int | None
) -> tuple[Proposal | None, tuple[str, ...]]:
    """Return the settings to propose for a torch DataLoader, and notes; None for other loaders."""
    evidence = loader.evidence
    if evidence.loader.type != "torch":
        return None, (_why_no_settings(evidence.loader),)
    workload, notes = observed_workload(evidence)
    if workload is None:
        return None, notes
    per_batch = samples_per_batch(evidence)
    proposal = propose(
        workload,
        observed_settings(evidence),
        observed_context(loader, batch_bytes),
        profile,
        samples_per_batch=1.0 if isnan(per_batch) else per_batch,
        measured_batches_s=1 / evidence.rate_cycle_s,
        pinned=pinned,
    )
    return proposal, (*notes, *proposal.notes)


# -- numbers -------------------------------------------------------------------------------------------------------


def _batches_s(evidence: Evidence, proposal: Proposal | None) -> float:
    """Return the measured batches per second, with the start of the workers spread over the epoch."""
    steady_batches_s = 1 / evidence.rate_cycle_s
    return steady_batches_s * (1 if proposal is None else proposal.now.startup_factor)


def _planned_batches_s(
    loader: LoaderDiagnosis,
    proposal: Proposal | None,
    changes_of_loader: Sequence[Change],
    changes_of_step: tuple[Change, ...],
) -> float:
    """Return the measured batches per second times the predicted gain of all changes together.

    A change of the training step saves, per step, the seconds that correspond to its gain in the run as it was. The
    rate is no higher than that of the step that is left.
    """
    evidence = loader.evidence
    cycle_s, step_s = evidence.loop.cycle_s, mean(evidence.contention.step_s)
    saved_s = sum(cycle_s * (1 - 1 / (1 + change.gain)) for change in changes_of_step if change.gain)
    if proposal is None:
        return 1 / max(cycle_s - saved_s, MIN_STEP_SHARE * cycle_s)
    gains = [change.gain for change in changes_of_loader if change.gain is not None]
    gain_of_loader = gains[0] if len(gains) == 1 else proposal.gain if gains else 0.0
    planned = proposal.then.with_remedy(lambda workload: workload)
    shorter = planned.with_remedy(
        lambda workload: with_step(workload, np.maximum(workload.step_s - saved_s, MIN_STEP_SHARE * workload.step_s))
    )
    now = _batches_s(evidence, proposal)
    found = now * (1 + gain_of_loader) * (1 + shorter.gain_over(planned))
    pinned = any(change.name == "pin_memory" for change in changes_of_loader)
    copy = loader.suspects.get("pageable_copy") if pinned else None
    shorter_s = saved_s + (copy.saved_s or 0.0 if copy else 0.0)
    left_s = max(step_s - shorter_s, MIN_STEP_SHARE * step_s)
    return min(found, max(now, 1 / left_s)) if left_s > 0 else found


def _agreeing(
    loader: LoaderDiagnosis, proposal: Proposal | None, pinned: Collection[str]
) -> tuple[tuple[Change, ...], dict[str, Any]]:
    """Return the proposed changes and keyword arguments with the gains of the findings that propose the same.

    A setting that a finding proposes is proposed, and one whose cause a rule has ruled out is not.
    """
    if proposal is None:
        return (), {}
    kwargs, found = dict(proposal.kwargs), []
    for change in proposal.changes:
        gain = _agreed_gain(loader, change)
        if gain is not None and gain < MIN_GAIN and not change.cost.endswith(LESS_MEMORY):
            kwargs[change.name] = change.now
        else:
            found.append(replace(change, gain=gain))
    if kwargs.get("persistent_workers") is False and "persistent_workers" not in pinned:
        suspect = loader.suspects.get("worker_startup")
        if suspect is not None and suspect.settings and kwargs["num_workers"]:
            kwargs["persistent_workers"] = True
            found.append(
                Change(
                    scope="dataloader",
                    name="persistent_workers",
                    now=False,
                    then=True,
                    reason=f"{suspect.summary}: {suspect.evidence[0]}",
                    gain=loader.gains.of(suspect).gain,
                    cost="Workers keep their memory between epochs",
                )
            )
    return tuple(found), kwargs


def _agreed_gain(loader: LoaderDiagnosis, change: Change) -> float | None:
    """Return the gain of a change as the findings have it, where one of them is about the same setting."""
    startup_ruled_out = isinstance(loader.answers.get("worker_startup"), RuledOut)
    if change.name == "persistent_workers" and startup_ruled_out and loader.evidence.settings.num_workers:
        return 0.0
    suspects = [suspect for suspect in loader.suspects.values() if change.name in suspect.settings]
    for suspect in suspects:
        if suspect.settings[change.name] == change.then:
            return loader.gains.of(suspect).gain
    if suspects and change.name == "num_workers" and loader.evidence.workload is not None and change.then:
        workers = int(change.then)
        return loader.gains.of_edit(lambda workload: with_workers(workload, workers)).gain
    if change.gain is None or change.name in STEP_SETTINGS:
        return change.gain
    return min(change.gain, max(0.0, loader.gains.ceiling))


def _limits(evidence: Evidence, proposal: Proposal | None, per_batch: float) -> tuple[ThroughputLimit, ...]:
    """Return the limits of the run as it was; only that of the step if the workers were not recorded."""
    if isnan(per_batch):
        return ()
    if proposal is not None:
        return proposal.now.prediction.limits
    step_s = mean(evidence.contention.step_s)
    return (ThroughputLimit(name="step", samples_s=per_batch / step_s),) if step_s > 0 else ()


def _most_gain(loader: LoaderDiagnosis, proposal: Proposal | None) -> float | None:
    """Return the gain if steps never waited for data or a core, from measured times; None if steps take no time."""
    if mean(loader.evidence.contention.step_s) <= 0:
        return None
    startup_factor = 1.0 if proposal is None else proposal.now.startup_factor
    return max(0.0, (1 + loader.gains.ceiling) / startup_factor - 1)


def _known_rate(rate: float) -> float | None:
    return None if isnan(rate) or not 0 < rate < inf else rate


# -- what is not known ---------------------------------------------------------------------------------------------


def _notes(
    evidence: Evidence, proposal: Proposal | None, batch_bytes: int | None, per_batch: float, most_gain: float | None
) -> Iterator[str]:
    for name, setting in evidence.loader.settings.items():
        if _changed_by_library(setting.requested, setting.in_force):
            yield f"{name}={setting.requested} was requested, but {setting.in_force} is in force: a library changed it"
    if text := in_use_text(evidence):
        yield text
    if isnan(per_batch):
        yield "Samples were not counted, so there are no rates"
    if most_gain is None:
        yield "The loop does nothing with its batches: loading alone limits the rate"
    if proposal is not None:
        yield from _proposal_notes(evidence, proposal, batch_bytes)


def _proposal_notes(evidence: Evidence, proposal: Proposal, batch_bytes: int | None) -> Iterator[str]:
    if batch_bytes is None and proposal.need is not None:
        yield (
            "A batch was assumed to be as large as the bytes read for it; decoded it is larger, and so is the memory "
            "that is needed"
        )
    effective, workers = evidence.workers.effective_workers, evidence.settings.num_workers
    if evidence.loader.dataset_size is None and effective < workers:
        yield (
            f"The dataset divides its samples itself, between {effective} of {workers} workers: more of them would "
            "have nothing to do"
        )
    predicted, measured = proposal.now.prediction.batches_s, 1 / evidence.rate_cycle_s
    if proposal.now.startup_factor < 1 - MIN_GAIN:
        yield (
            f"Rates are those of whole epochs with the start of workers: between starts it is {measured:.3g} batches/s"
        )
    if abs(predicted / measured - 1) > MODEL_ERROR:
        yield (
            f"The model predicts {predicted:.3g} batches/s for the run as it was, and {measured:.3g} were measured: "
            "something that the model does not include has an effect, and gains may be off by as much"
        )


def _changed_by_library(requested: Any, in_force: Any) -> bool:
    return requested is not None and in_force is not None and requested != in_force

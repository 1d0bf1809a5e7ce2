"""From a recording to a plan: what was measured, what binds, what to change, and what is not known."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import ceil, inf, isnan
from typing import Any

import numpy as np

from penstock.core.arrays import mean
from penstock.core.plan import Change, Plan, Profile, ThroughputLimit, nested_settings
from penstock.diagnose.evidence.evidence import Evidence, gather
from penstock.diagnose.evidence.storage_waits import REMOTE, storage_waits
from penstock.diagnose.verdict import STEPS_MIN
from penstock.model.edits import with_step
from penstock.plan.data_changes import data_changes
from penstock.plan.fingerprint import fingerprint
from penstock.plan.loader_changes import store_changes
from penstock.plan.profiles import profile_goal
from penstock.plan.proposal import Proposal, propose
from penstock.plan.scenario_from_evidence import place_of, settings_of, workload_of
from penstock.plan.setting_changes import MIN_GAIN
from penstock.plan.step_changes import step_changes
from penstock.recording.reader import Recording, require_training_run

MODEL_ERROR = 0.15
"""A model that is further off than this on the run as it was is told, with both numbers."""
LEAST_STEP = 0.05
"""Of a step, that no change takes away."""
MOST_READERS = 32
"""As many reads in flight as an object store likes."""
_OTHER_LOADERS = {
    "penstock": "penstock.Loader sets its readers, workers and look-ahead itself while it runs",
    "iterable": "The loader is none of torch's: there are no settings of it to propose",
}
"""By the type of a loader: why nothing is proposed for it."""


def plan_from_recording(
    recording: Recording,
    profile: Profile = "balanced",
    *,
    pinned: Collection[str] = (),
    batch_bytes: int | None = None,
) -> Plan:
    """For the loader that cost most waiting.

    Settings of the DataLoader named in `pinned` stay as they are. Recordings do not hold the size of a batch in memory:
    without `batch_bytes` it is taken to be what was read for it, which decoded pictures exceed.
    """
    profile_goal(profile)  # refused before anything else
    require_training_run(recording)
    machine, seen = recording.run.machine, gather(recording)
    evidence = next((each for each in seen if len(each.loop.steps) >= STEPS_MIN and each.loop.cycle_s > 0), None)
    if evidence is None:
        steps = max((len(each.loop.steps) for each in seen), default=0)
        return Plan(
            source="recording",
            fingerprint=fingerprint(machine, seen[0].loader if seen else None),
            profile=profile,
            notes=(*recording.notes, f"{steps} steps are too few to plan from: let it train for {5 * STEPS_MIN}"),
        )
    proposal, notes = _proposal(evidence, profile, pinned, batch_bytes)
    of_step = step_changes(evidence)
    others = (*of_step, *data_changes(evidence), *_loader_changes(evidence), *store_changes(evidence))
    changes = (*(proposal.changes if proposal else ()), *others)
    per_batch = samples_per_batch(evidence)
    most_gain = _most_gain(evidence, proposal)
    return Plan(
        source="recording",
        fingerprint=fingerprint(machine, evidence.loader),
        profile=profile,
        samples_s=_known(_batches_s(evidence, proposal) * per_batch),
        planned_samples_s=_known(_planned_batches_s(evidence, proposal, of_step) * per_batch),
        limits=_limits(evidence, proposal, per_batch),
        most_gain=most_gain,
        wait_share=evidence.starved_share,
        memory_bytes=proposal.need.total_bytes if proposal and proposal.need else None,
        changes=tuple(sorted(changes, key=lambda change: -inf if change.gain is None else change.gain, reverse=True)),
        dataloader=proposal.kwargs if proposal else {},
        loader=nested_settings(change for change in others if change.scope == "loader"),
        notes=(*recording.notes, *notes, *_notes(evidence, proposal, batch_bytes, per_batch, most_gain)),
    )


def samples_per_batch(evidence: Evidence) -> float:
    """As counted, else as set; NaN where nobody knows."""
    size = evidence.settings.in_force("batch_size")
    counted = evidence.loop.samples_per_batch
    return float(size) if isnan(counted) and isinstance(size, int) and size > 0 else counted


# -- torch's DataLoader --------------------------------------------------------------------------------------------


def _proposal(
    evidence: Evidence, profile: Profile, pinned: Collection[str], batch_bytes: int | None
) -> tuple[Proposal | None, tuple[str, ...]]:
    if evidence.loader.type != "torch":
        return None, (_OTHER_LOADERS.get(evidence.loader.type, _OTHER_LOADERS["iterable"]),)
    workload, notes = workload_of(evidence)
    if workload is None:
        return None, notes
    per_batch = samples_per_batch(evidence)
    found = propose(
        workload,
        settings_of(evidence),
        place_of(evidence, batch_bytes),
        profile,
        samples_per_batch=1.0 if isnan(per_batch) else per_batch,
        measured_batches_s=1 / evidence.loop.cycle_s,
        pinned=pinned,
    )
    return found, (*notes, *found.notes)


# -- numbers -------------------------------------------------------------------------------------------------------


def _batches_s(evidence: Evidence, proposal: Proposal | None) -> float:
    """As measured, the start of workers shared out over an epoch."""
    steady = 1 / evidence.loop.cycle_s
    return steady * (1 if proposal is None else proposal.now.startup_factor)


def _planned_batches_s(evidence: Evidence, proposal: Proposal | None, steps: tuple[Change, ...]) -> float:
    """The measured rate times what the model says that all changes together give.

    A change of the step saves, per step, the seconds that its gain is worth in the run as it was.
    """
    saved_s = sum(evidence.loop.cycle_s * (1 - 1 / (1 + change.gain)) for change in steps if change.gain)
    if proposal is None:
        return 1 / max(evidence.loop.cycle_s - saved_s, LEAST_STEP * evidence.loop.cycle_s)
    plain = proposal.then.with_remedy(lambda workload: workload)
    shorter = plain.with_remedy(
        lambda workload: with_step(workload, np.maximum(workload.step_s - saved_s, LEAST_STEP * workload.step_s))
    )
    return _batches_s(evidence, proposal) * (1 + proposal.gain) * (1 + shorter.gain_over(plain))


def _limits(evidence: Evidence, proposal: Proposal | None, per_batch: float) -> tuple[ThroughputLimit, ...]:
    """Of the run as it was; of a loader whose workers nobody saw, the step alone."""
    if isnan(per_batch):
        return ()
    if proposal is not None:
        return proposal.now.prediction.limits
    step_s = mean(evidence.contention.step_s)
    return (ThroughputLimit(name="step", samples_s=per_batch / step_s),) if step_s > 0 else ()


def _most_gain(evidence: Evidence, proposal: Proposal | None) -> float | None:
    """Measured: steps that never wait, neither for data nor for a core. None where they take no time at all."""
    step_s = mean(evidence.contention.step_s)
    return max(0.0, 1 / (step_s * _batches_s(evidence, proposal)) - 1) if step_s > 0 else None


def _known(rate: float) -> float | None:
    return None if isnan(rate) or not 0 < rate < inf else rate


# -- penstock.Loader -----------------------------------------------------------------------------------------------


def _loader_changes(evidence: Evidence) -> Iterator[Change]:
    """Reads in flight, where it was seen how the storage takes several readers; the loader finds the rest itself."""
    seen = storage_waits(evidence)
    if seen is None or evidence.loader.type == "penstock":
        return
    if seen.manner == "thrash":
        yield _readers(1, f"readers are in each other's way: {seen.together_words}")
    elif seen.manner == "share":
        yield _readers(2, f"the storage is full with one reader, a second fills the gaps: {seen.together_words}")
    elif seen.manner == "apart" or seen.remote > REMOTE:
        step_s = max(mean(evidence.contention.step_s), 1e-6)
        needed = ceil(mean(evidence.workers.blocked_s) / step_s)
        yield _readers(
            min(MOST_READERS, max(1, needed)),
            f"a batch waits {mean(evidence.workers.blocked_s):.2g} s for answers and a step takes {step_s:.2g} s: "
            f"{needed} at a time keep up (Little's law)",
        )


def _readers(number: int, reason: str) -> Change:
    return Change(scope="loader", name="reading.num_readers", now=None, then=number, reason=reason)


# -- what is not known ---------------------------------------------------------------------------------------------


def _notes(
    evidence: Evidence, proposal: Proposal | None, batch_bytes: int | None, per_batch: float, most_gain: float | None
) -> Iterator[str]:
    for name, setting in evidence.loader.settings.items():
        if _clamped(setting.requested, setting.in_force):
            yield f"{name} was asked to be {setting.requested} and is {setting.in_force}: changed on the way"
    if isnan(per_batch):
        yield "Samples were not counted, so there are no rates"
    if most_gain is None:
        yield "The loop does nothing with its batches: nothing but their supply sets the pace"
    if proposal is None:
        return
    if batch_bytes is None and proposal.need is not None:
        yield "A batch was taken to be as large as what was read for it; decoded it is larger, and so is the need"
    if evidence.loader.dataset_size is None and evidence.workers.effective_workers < evidence.settings.num_workers:
        yield (
            f"The dataset deals its samples itself, and to {evidence.workers.effective_workers} of {evidence.settings.num_workers} workers: "
            "more of them would have nothing to do"
        )
    if proposal.now.startup_factor < 1 - MIN_GAIN:
        yield (
            "Rates are those of whole epochs, the start of workers counted in: between starts it is "
            f"{1 / evidence.loop.cycle_s:.3g} batches/s"
        )
    predicted, measured = proposal.now.prediction.batches_s, 1 / evidence.loop.cycle_s
    if abs(predicted / measured - 1) > MODEL_ERROR:
        yield (
            f"The model says {predicted:.3g} batches/s for the run as it was, and {measured:.3g} were measured: "
            "something it does not see is at work, and gains may be off by as much"
        )


def _clamped(requested: Any, in_force: Any) -> bool:
    return requested is not None and in_force is not None and requested != in_force

"""Plans for a training that was not run: the model combines its parts, each of which was measured separately.

`plan_from_probes` uses the results of `penstock probe`: storage, decoding and transfer between processes. It assumes
that a worker reads its samples one by one at random positions, as a map-style dataset does, then decodes and collates
them, and that the step takes the time that was given or measured. The parts were never run together; `penstock verify`
does that. `plan_from_parts` is the common end: penstock.plan_for (tuner/plan_for.py) uses it with one measured worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

import numpy as np

from penstock.core.cgroups import free_bytes
from penstock.core.cores import usable_cores
from penstock.core.format import format_bytes
from penstock.core.plan import Change, Plan, Profile, nested_settings
from penstock.errors import SettingError
from penstock.model.workload import Workload
from penstock.plan.fingerprint import differences
from penstock.plan.memory import shared_free_bytes
from penstock.plan.proposal import propose
from penstock.plan.scenario import LoaderSettings, TrainingContext
from penstock.plan.storage_model import on_storage
from penstock.probe.results import DecodeRates, IpcCost, ProbedValues, StepProbe
from penstock.probe.storage_curve import NEARLY_BEST, StorageCurve, explain_store
from penstock.storage.page_cache import ReadMethod

TORCH_DEFAULTS = LoaderSettings(num_workers=0)
"""The settings of a DataLoader for which none are given."""
WITHOUT_STEP = "No step is known: this is loading alone, as fast as it can be. With a step fewer workers may be enough"


# -- a plan from measured parts ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredParts:
    """A workload put together from separate measurements, with the loader's current settings."""

    source: Literal["probes", "dataset"]
    workload: Workload
    settings: LoaderSettings
    context: TrainingContext
    samples_per_batch: float
    fingerprint: Mapping[str, Any]
    loader_changes: tuple[Change, ...] = ()
    """Changes for penstock.Loader."""
    notes: tuple[str, ...] = ()


def plan_from_parts(parts: MeasuredParts, profile: Profile = "balanced") -> Plan:
    """Return a plan whose gains are relative to the predicted rate of the current settings: nothing was run."""
    proposal = propose(
        parts.workload, parts.settings, parts.context, profile, samples_per_batch=parts.samples_per_batch
    )
    now, then = proposal.now, proposal.then
    changes = sorted(proposal.changes, key=lambda change: change.gain or 0.0, reverse=True)
    return Plan(
        source=parts.source,
        fingerprint=parts.fingerprint,
        profile=profile,
        samples_s=_finite(now.samples_s),
        planned_samples_s=_finite(then.samples_s),
        limits=then.prediction.limits,
        most_gain=_finite(now.prediction.most_gain),
        memory_bytes=None if proposal.need is None else proposal.need.total_bytes,
        changes=(*changes, *parts.loader_changes),
        dataloader=proposal.kwargs,
        loader=nested_settings(parts.loader_changes),
        notes=(*parts.notes, *_parts_notes(parts, now.samples_s), *proposal.notes),
    )


def _parts_notes(parts: MeasuredParts, samples_s: float) -> tuple[str, ...]:
    workers = parts.settings.num_workers
    settings = "torch's defaults (no workers)" if not workers else f"{workers} workers, as it is set"
    note = (
        f"Nothing was run: the model predicts {samples_s:,.3g} samples/s with {settings}, and gains are relative to it"
    )
    return (note,) if parts.workload.step_s.any() else (note, WITHOUT_STEP)


def _finite(number: float) -> float | None:
    return number if number < inf else None


# -- a plan from probes --------------------------------------------------------------------------------------------

BATCHES = 120
"""Batches of the workload: all alike, and enough for the simulation to become periodic."""


@dataclass(frozen=True, slots=True)
class StepFacts:
    """The time of a training step on a batch that is ready."""

    step_s: float = 0.0
    cpu_s: float = 0.0
    """The part of it that occupies a core, which workers may need too."""
    samples: int | None = None
    """Samples in the batch that was timed; None: as many as in the batches of the other probes."""

    @classmethod
    def probed(cls, probe: StepProbe) -> StepFacts:
        """Take the time from a probe.

        On a GPU it is the time beside busy cores. On a CPU it is the time alone, because the model shares the cores.
        """
        if probe.device == "cpu":
            return cls(probe.alone.step_s, probe.alone.step_s, probe.samples)
        return cls(probe.beside.step_s, 0.0, probe.samples)


NO_STEP = StepFacts()


def plan_from_probes(found: ProbedValues, step: StepFacts = NO_STEP, profile: Profile = "balanced") -> Plan:
    """Return a plan for a torch DataLoader over the probed samples, with the batch size of the transfer probe."""
    workload, ipc = probed_workload(found, step), _required("ipc", found.ipc, found)
    elsewhere = differences(Plan(source="probes", fingerprint=found.fingerprint))
    curve = _cold_curve(found)
    parts = MeasuredParts(
        source="probes",
        workload=workload,
        settings=TORCH_DEFAULTS,
        context=_context(found, ipc, step, same_machine=not elsewhere),
        samples_per_batch=ipc.batch_size,
        fingerprint=found.fingerprint,
        loader_changes=() if curve is None else (_readers_change(curve),),
        notes=(*elsewhere, *_probe_notes(found, curve)),
    )
    return plan_from_parts(parts, profile)


def probed_workload(found: ProbedValues, step: StepFacts = NO_STEP) -> Workload:
    """Return a workload with torch's default settings whose samples are read at random from the probed storage."""
    decode, ipc = _required("decode", found.decode, found), _required("ipc", found.ipc, found)
    if step.samples is not None and step.samples != ipc.batch_size:
        raise SettingError(
            f"the step was timed with batches of {step.samples}, the IPC probe used batches of {ipc.batch_size}",
            advice=f"Probe again with --batch-size {step.samples}",
        )
    workload, curve = _workload(decode, ipc, step, found), _cold_curve(found)
    if curve is None:
        return workload
    return on_storage(
        workload,
        [(p.in_flight, p.sequential_mb_per_s * 1e6, p.random_reads_per_s) for p in curve.points],
        batch_bytes=ipc.batch_size * decode.sample_bytes,
        batch_requests=ipc.batch_size,
    )


def _cold_curve(found: ProbedValues) -> StorageCurve | None:
    """Return the storage curve, unless it was read from the page cache, which says nothing about the storage."""
    return found.curve if found.curve is not None and found.curve.cold else None


def _required(name: str, measured: Any, found: ProbedValues) -> Any:
    if measured is None:
        why = f": {found.reasons[name]}" if name in found.reasons else ""
        raise SettingError(
            f"the probes do not say what {'decoding' if name == 'decode' else 'the transfer of a batch'} costs{why}",
            advice="Probe all of them: penstock probe all SHARDS --json",
        )
    return measured


def _workload(decode: DecodeRates, ipc: IpcCost, step: StepFacts, found: ProbedValues) -> Workload:
    """Return the workload without storage: workers decode, collate and send; the training loop receives."""
    machine = found.fingerprint.get("machine")
    cores = machine.get("usable_cores") if isinstance(machine, dict) else None
    copy_s = 0.0 if found.copy is None else found.copy.pageable_s
    worker_cpu_s = ipc.batch_size * decode.best.cpu_s_per_sample + ipc.batch_s
    return Workload(
        workers=TORCH_DEFAULTS.num_workers,
        prefetch=TORCH_DEFAULTS.prefetch_factor,
        in_order=True,
        cores=float(cores if isinstance(cores, int) and cores > 0 else usable_cores()),
        cpu_s=np.full(1, worker_cpu_s),
        latency_s=np.zeros(1),
        receive_s=np.full(1, ipc.main_cpu_s),
        step_s=np.full(1, step.step_s + (copy_s if step.step_s else 0.0)),
        step_cpu_s=np.full(1, step.cpu_s),
        worker=np.zeros(BATCHES, np.int64),
    )


def _context(found: ProbedValues, ipc: IpcCost, step: StepFacts, *, same_machine: bool) -> TrainingContext:
    """Return the context; free memory can be measured only on the machine of the probes."""
    machine = found.fingerprint.get("machine")
    facts = machine if isinstance(machine, dict) else {}
    gpus = facts.get("gpus")
    return TrainingContext(
        platform=str(facts.get("platform", "")),
        gpus=len(gpus) if isinstance(gpus, list) else 0,
        free_bytes=free_bytes() if same_machine else None,
        shared_free_bytes=shared_free_bytes() if same_machine else None,
        batch_bytes=ipc.batch_bytes,
        copy_s=0.0 if found.copy is None or not step.step_s else found.copy.pageable_s,
        device_s=step.step_s,
    )


def _readers_change(curve: StorageCurve) -> Change:
    """Propose as many large reads in flight as the storage can use."""
    best = curve.best_sequential().sequential_mb_per_s
    point = next(p for p in curve.points if p.sequential_mb_per_s >= NEARLY_BEST * best)
    return Change(
        scope="loader",
        name="reading.num_readers",
        now=None,
        then=point.in_flight,
        reason=f"With {point.in_flight} in flight, large reads get {point.sequential_mb_per_s:,.0f} MB/s; "
        f"with any number at most {best:,.0f}",
    )


def _probe_notes(found: ProbedValues, curve: StorageCurve | None) -> Iterator[str]:
    if curve is not None:
        yield (
            f"Samples are assumed to be read one by one, {format_bytes(curve.sample_bytes)} each, at random positions: "
            "a dataset that reads whole shards sequentially needs less of the storage"
        )
        if curve.method == ReadMethod.REQUESTS:
            yield f"The store: {explain_store(curve)}"
    elif found.curve is not None:
        yield "The storage was measured out of the page cache, which says nothing about it: it is left out"
    else:
        why = found.reasons.get("storage", "it was not measured")
        yield f"The storage is left out ({why}): it is assumed to be faster than everything else"

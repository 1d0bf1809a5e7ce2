"""A plan from probes: storage, decoding and hand-over as measured, one by one, put together by the model.

It is assumed that a worker reads its samples one by one at random places, as a map-style dataset does, then decodes and
collates them, and that the step is what was said or measured. Nothing of it was run together: `penstock verify` does.
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

TORCHS_OWN = LoaderSettings(num_workers=0)
"""What a DataLoader has that nobody has set."""
NO_STEP_NOTE = "No step is known: this is loading alone, as fast as it can be. With a step fewer workers may be enough"


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
        loader=nested_settings(parts.loader_changes),
        notes=(*parts.notes, *_parts_notes(parts, now.samples_s), *found.notes),
    )


def _parts_notes(parts: MeasuredParts, samples_s: float) -> tuple[str, ...]:
    workers = parts.settings.num_workers
    whose = "torch's defaults (no workers)" if not workers else f"{workers} workers, as it is set"
    told = f"Nothing was run: {samples_s:,.3g} samples/s is what the model says of {whose}, and gains count from there"
    return (told,) if parts.workload.step_s.any() else (told, NO_STEP_NOTE)


def _finite(number: float) -> float | None:
    return number if number < inf else None


BATCHES = 120
"""Of the workload: all alike, and enough for the simulator to find a rhythm."""


@dataclass(frozen=True, slots=True)
class StepFacts:
    """Of the training, on a batch that is there."""

    step_s: float = 0.0
    cpu_s: float = 0.0
    """Of it, on a core that workers may want, too."""
    samples: int | None = None
    """In the batch it was timed with; None: as many as there are."""

    @classmethod
    def probed(cls, probe: StepProbe) -> StepFacts:
        """On the CPU the model shares the cores out itself; on a device, busy cores cost what was seen."""
        if probe.device == "cpu":
            return cls(probe.alone.step_s, probe.alone.step_s, probe.samples)
        return cls(probe.beside.step_s, 0.0, probe.samples)


NO_STEP = StepFacts()


def plan_from_probes(found: ProbedValues, step: StepFacts = NO_STEP, profile: Profile = "balanced") -> Plan:
    """For a torch DataLoader over such samples, in batches as large as those that were handed over."""
    workload, ipc = probed_workload(found, step), _needed("ipc", found.ipc, found)
    elsewhere = differences(Plan(source="probes", fingerprint=found.fingerprint))
    curve = _cold(found)
    parts = MeasuredParts(
        source="probes",
        workload=workload,
        settings=TORCHS_OWN,
        place=_place(found, ipc, step, here=not elsewhere),
        samples_per_batch=ipc.batch_size,
        fingerprint=found.fingerprint,
        loader_changes=() if curve is None else (_readers(curve),),
        notes=(*elsewhere, *_probe_notes(found, curve)),
    )
    return plan_from_parts(parts, profile)


def probed_workload(found: ProbedValues, step: StepFacts = NO_STEP) -> Workload:
    """With torch's own settings; samples read one by one at random places of the storage that was measured."""
    decode, ipc = _needed("decode", found.decode, found), _needed("ipc", found.ipc, found)
    if step.samples is not None and step.samples != ipc.batch_size:
        raise SettingError(
            f"the step was timed with batches of {step.samples}, the IPC probe used batches of {ipc.batch_size}",
            advice=f"Probe again with --batch-size {step.samples}",
        )
    workload, curve = _workload(decode, ipc, step, found), _cold(found)
    if curve is None:
        return workload
    return on_storage(
        workload,
        [(p.in_flight, p.sequential_mb_per_s * 1e6, p.random_reads_per_s) for p in curve.points],
        batch_bytes=ipc.batch_size * decode.sample_bytes,
        batch_requests=ipc.batch_size,
    )


def _cold(found: ProbedValues) -> StorageCurve | None:
    """What was read out of the page cache says nothing of the storage."""
    return found.curve if found.curve is not None and found.curve.cold else None


def _needed(name: str, measured: Any, found: ProbedValues) -> Any:
    if measured is None:
        why = f": {found.reasons[name]}" if name in found.reasons else ""
        raise SettingError(
            f"the probes do not say what {'decoding' if name == 'decode' else 'handing a batch over'} costs{why}",
            advice="Probe all of them: penstock probe all SHARDS --json",
        )
    return measured


def _workload(decode: DecodeRates, ipc: IpcCost, step: StepFacts, found: ProbedValues) -> Workload:
    """A worker decodes, collates and sends; the loop takes over. Cores as of the machine that was measured."""
    machine = found.fingerprint.get("machine")
    cores = machine.get("usable_cores") if isinstance(machine, dict) else None
    copy_s = 0.0 if found.copy is None else found.copy.pageable_s
    making_s = ipc.batch_size * decode.best.cpu_s_per_sample + ipc.batch_s
    return Workload(
        workers=TORCHS_OWN.num_workers,
        prefetch=TORCHS_OWN.prefetch_factor,
        in_order=True,
        cores=float(cores if isinstance(cores, int) and cores > 0 else usable_cores()),
        cpu_s=np.full(1, making_s),
        alone_s=np.zeros(1),
        handover_s=np.full(1, ipc.main_cpu_s),
        step_s=np.full(1, step.step_s + (copy_s if step.step_s else 0.0)),
        step_cpu_s=np.full(1, step.cpu_s),
        worker=np.zeros(BATCHES, np.int64),
    )


def _place(found: ProbedValues, ipc: IpcCost, step: StepFacts, *, here: bool) -> TrainingContext:
    """What is free can be asked only where the probes were made."""
    machine = found.fingerprint.get("machine")
    facts = machine if isinstance(machine, dict) else {}
    gpus = facts.get("gpus")
    return TrainingContext(
        platform=str(facts.get("platform", "")),
        gpus=len(gpus) if isinstance(gpus, list) else 0,
        free_bytes=free_bytes() if here else None,
        shared_free_bytes=shared_free_bytes() if here else None,
        batch_bytes=ipc.batch_bytes,
        copy_s=0.0 if found.copy is None or not step.step_s else found.copy.pageable_s,
        device_s=step.step_s,
    )


def _readers(curve: StorageCurve) -> Change:
    """As many large reads in flight as the storage can use."""
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
            f"Samples are taken to be read one by one, {format_bytes(curve.sample_bytes)} each, at random places: "
            "a dataset that reads whole shards in a row asks less of the storage"
        )
        if curve.method == ReadMethod.REQUESTS:
            yield f"The store: {explain_store(curve)}"
    elif found.curve is not None:
        yield "The storage was measured out of the page cache, which says nothing of it: it is left out"
    else:
        why = found.reasons.get("storage", "it was not measured")
        yield f"The storage is left out ({why}): it is taken to be faster than everything else"

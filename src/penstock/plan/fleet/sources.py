"""What one rank asks for, from a recording of it or from probes."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, isnan
from typing import Any

import numpy as np

from penstock.data.order.blocks import BLOCK_BYTES
from penstock.diagnose.evidence.evidence import Evidence, gather
from penstock.diagnose.verdict import ENOUGH_STEPS
from penstock.errors import RecordingError, SettingError
from penstock.plan.fleet.need import RankNeed
from penstock.plan.from_evidence import workload_of
from penstock.plan.from_probes import StepFacts, probed_workload
from penstock.plan.from_recording import samples_per_batch
from penstock.plan.knobs import MOST_WORKERS
from penstock.plan.predict import thinned
from penstock.probe.results import ProbedValues
from penstock.recording.format import HopsLine
from penstock.recording.reader import Recording, need_run

STEP = "Give --step-ms, or the recording of `penstock run --probe compute`"
IN_STEP = (
    "The steps that were recorded are those of {ranks} ranks, and hold the waiting for the slowest of them: it is "
    "counted once more here"
)


def need_from_recording(recording: Recording) -> RankNeed:
    """Of the loader that cost most waiting."""
    need_run(recording)
    seen = gather(recording)
    evidence = next((each for each in seen if len(each.steps) >= ENOUGH_STEPS and each.cycle_s > 0), None)
    if evidence is None:
        steps = max((len(each.steps) for each in seen), default=0)
        raise RecordingError(
            f"{steps} steps are too few to plan from", advice=f"Let it train for {5 * ENOUGH_STEPS}, then plan"
        )
    found = _of_penstock(evidence) if evidence.loader.type == "penstock" else _of_torch(evidence)
    ranks = recording.run.world_size
    notes = (*recording.notes, *((IN_STEP.format(ranks=ranks),) if ranks > 1 else ()))
    return replace(found, notes=(*notes, *found.notes))


def need_from_probes(found: ProbedValues, step: StepFacts) -> RankNeed:
    """With as many workers as keep up with the step; samples are read one by one, as a plan from probes has it."""
    if not step.step_s:
        raise SettingError("what a step takes is not known, so any amount of data is too little", advice=STEP)
    workload = probed_workload(found, step)
    assert found.decode is not None
    assert found.handover is not None
    size = found.handover.batch_size
    need = RankNeed.of(
        workload,
        source="probes",
        samples_per_batch=float(size),
        batch_bytes=size * found.decode.sample_bytes,
        batch_requests=float(size),
        notes=("Samples are taken to be read one by one, with a request for each",),
    )
    service_s = float(need.cpu_s.mean() + need.waited_s.mean())
    return replace(need, workers=min(MOST_WORKERS, ceil(service_s / float(need.step_s.mean())) + 1))


def _of_torch(evidence: Evidence) -> RankNeed:
    """By its fetches; of a loader whose workers nobody saw, the steps alone."""
    workload, notes = workload_of(evidence)
    told = _told(evidence)
    if workload is None:
        return _steps_alone(evidence, **told, notes=(*notes, "What a batch takes to make is left out"))
    read = evidence.mean([fetch.read_bytes for fetch in evidence.fetches])
    requests = evidence.mean([fetch.reads for fetch in evidence.fetches])
    counted = ("A read call of a worker counts as a request: a file system may join them, or ask for more",)
    return RankNeed.of(
        thinned(workload),
        **told,
        batch_bytes=read or None,
        batch_requests=requests or None,
        notes=(*notes, *(counted if requests else ())),
    )


def _of_penstock(evidence: Evidence) -> RankNeed:
    """By its hops: reading is ahead of decoding, in blocks, and keeps no worker waiting."""
    lines = [line for line in evidence.recording.hops if line.loader == evidence.loader.loader]
    told = _told(evidence)
    batches = sum(lines[0].at_s <= step.at_s < lines[-1].at_s for step in evidence.steps) if lines else 0
    if not batches:
        return _steps_alone(evidence, **told, notes=("The loader's hops were not recorded: its work is left out",))
    first, last = lines[0], lines[-1]
    read = (last.bytes_read - first.bytes_read) / batches
    decoding_s = (_busy_s(last, "decode") - _busy_s(first, "decode")) / batches
    size = evidence.setting("block_bytes")
    block_bytes = size if isinstance(size, int) and size > 0 else BLOCK_BYTES
    return _steps_alone(
        evidence,
        **told,
        cpu_s=np.full(len(evidence.own_s), max(0.0, decoding_s)),
        batch_bytes=read if read > 0 else None,
        batch_requests=read / block_bytes if read > 0 else None,
        workers=max(1, last.workers),
        prefetch=max(2, ceil(last.look_ahead / max(1, last.workers))),
    )


def _steps_alone(evidence: Evidence, **known: Any) -> RankNeed:
    nothing = np.zeros(len(evidence.own_s))
    fields = {
        "cpu_s": nothing,
        "waited_s": nothing,
        "batch_bytes": None,
        "batch_requests": None,
        "workers": max(1, evidence.workers),
        "prefetch": evidence.prefetch,
        "cores": evidence.cores,
        "step_s": evidence.own_s,
        "step_cpu_s": evidence.own_s * evidence.step_cpu,
    }
    return RankNeed(**{**fields, **known})


def _told(evidence: Evidence) -> dict[str, Any]:
    return {
        "source": "recording",
        "samples_per_batch": samples_per_batch(evidence),
        "samples": _samples(evidence),
    }


def _samples(evidence: Evidence) -> float | None:
    """Of an epoch over all ranks."""
    loader, per_batch = evidence.loader, samples_per_batch(evidence)
    if loader.dataset_size is not None:
        return float(loader.dataset_size)
    if loader.batches is None or isnan(per_batch):
        return None
    return loader.batches * per_batch * evidence.recording.run.world_size


def _busy_s(line: HopsLine, hop: str) -> float:
    return line.hops.get(hop, (0.0, 0.0, 0.0))[0]

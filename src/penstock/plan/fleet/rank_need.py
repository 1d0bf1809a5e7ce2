"""What one rank of a training asks for, as measured on one node: every plan for many begins here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf, isnan
from typing import Any, Literal, Self

import numpy as np

from penstock.core.arrays import mean
from penstock.diagnose.evidence.evidence import Evidence, gather
from penstock.diagnose.verdict import STEPS_MIN
from penstock.errors import RecordingError, SettingError
from penstock.model.simulation_input import Floats
from penstock.model.workload import Workload
from penstock.options import BLOCK_BYTES
from penstock.plan.data_changes import QUARTER
from penstock.plan.from_probes import StepFacts, probed_workload
from penstock.plan.from_recording import samples_per_batch
from penstock.plan.predict import thinned
from penstock.plan.scenario_from_evidence import workload_of
from penstock.plan.worker_count import MAX_WORKERS
from penstock.probe.results import ProbedValues
from penstock.recording.format import HopsLine
from penstock.recording.reader import Recording, require_training_run

ALREADY = 1.5
"""Times the requests that blocks would take: a run that makes no more than so many reads in blocks already."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RankNeed:
    """Of one rank, batch by batch: seconds with nobody in the way."""

    source: Literal["recording", "probes"]
    samples_per_batch: float
    cpu_s: Floats
    """Making a batch, on a core."""
    waited_s: Floats
    """Making a batch, in anything but computing: bytes that come, mostly."""
    step_s: Floats
    """Of the loop, taking the batch over included."""
    step_cpu_s: Floats
    """Of it, on a core."""
    batch_bytes: float | None
    """Read for a batch; None where nobody could count."""
    batch_requests: float | None
    workers: int
    prefetch: int
    cores: float
    """Of the node that was measured."""
    samples: float | None = None
    """Of an epoch; None where it is not known."""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.samples_per_batch < inf:
            raise SettingError("how many samples a batch has is not known, so nothing can be counted")
        if not self.step_s.mean() > 0:
            raise SettingError(
                "a step that takes no time asks for any amount of data", advice="Record a training that computes"
            )

    @classmethod
    def of(cls, workload: Workload, **told: Any) -> Self:
        """Of a run as the model takes it. A lock is the rank's own, so waiting for it is waiting."""
        return cls(
            cpu_s=workload.cpu_s,
            waited_s=workload.alone_s + workload.io_s + workload.serial_s,
            step_s=workload.step_s + workload.handover_s,
            step_cpu_s=workload.step_cpu_s + workload.handover_s,
            workers=workload.workers,
            prefetch=workload.prefetch,
            cores=workload.cores,
            **told,
        )

    @property
    def sample_bytes(self) -> float | None:
        """Read for a sample."""
        return None if self.batch_bytes is None else self.batch_bytes / self.samples_per_batch

    @property
    def dataset_bytes(self) -> float | None:
        """Of all that an epoch reads; None where it is not known."""
        return None if self.samples is None or self.sample_bytes is None else self.samples * self.sample_bytes

    @property
    def computing_s(self) -> float:
        """On a core, for a batch: making it, taking it over, and the step's own."""
        return float(self.cpu_s.mean() + self.step_cpu_s.mean())

    def with_dataset(self, size_bytes: float) -> Self:
        """Of a dataset that large, with samples like these."""
        if self.sample_bytes is None:
            raise SettingError(
                "bytes were not counted, so how many samples a dataset has does not follow from its size"
            )
        return replace(self, samples=size_bytes / self.sample_bytes)


# -- what packing would change ---------------------------------------------------------------------------------------


def in_blocks(need: RankNeed) -> RankNeed | None:
    """The same bytes in shards that are read block by block; None where that would be nothing new, or is not known.

    Waiting is taken to go with the number of requests, as it does where each has its latency.
    """
    if need.batch_bytes is None or need.batch_requests is None:
        return None
    blocks = need.batch_bytes / BLOCK_BYTES
    if need.batch_requests <= ALREADY * blocks:
        return None
    return replace(need, batch_requests=blocks, waited_s=need.waited_s * (blocks / need.batch_requests))


def half_the_side(need: RankNeed) -> RankNeed | None:
    """Pictures packed at half the side: a quarter of the pixels, of the bytes and of the time to decode."""
    if need.batch_bytes is None:
        return None
    packed = in_blocks(need) or need
    requests = None if packed.batch_requests is None else packed.batch_requests * QUARTER
    return replace(
        packed,
        batch_bytes=need.batch_bytes * QUARTER,
        batch_requests=requests,
        cpu_s=packed.cpu_s * QUARTER,
        waited_s=packed.waited_s * QUARTER,
    )


def expected_most(seconds: Floats, ranks: int) -> float:
    """The mean of the longest of so many draws from what was seen: no draw is longer than the longest seen."""
    ranked = np.sort(seconds)
    share = (np.arange(len(ranked) + 1) / len(ranked)) ** ranks
    return float((ranked * np.diff(share)).sum())


STEP = "Give --step-ms, or the recording of `penstock run --probe compute`"
IN_STEP = (
    "The steps that were recorded are those of {ranks} ranks, and hold the waiting for the slowest of them: it is "
    "counted once more here"
)


def need_from_recording(recording: Recording) -> RankNeed:
    """Of the loader that cost most waiting."""
    require_training_run(recording)
    seen = gather(recording)
    evidence = next((each for each in seen if len(each.loop.steps) >= STEPS_MIN and each.loop.cycle_s > 0), None)
    if evidence is None:
        steps = max((len(each.loop.steps) for each in seen), default=0)
        raise RecordingError(
            f"{steps} steps are too few to plan from", advice=f"Let it train for {5 * STEPS_MIN}, then plan"
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
    assert found.ipc is not None
    size = found.ipc.batch_size
    need = RankNeed.of(
        workload,
        source="probes",
        samples_per_batch=float(size),
        batch_bytes=size * found.decode.sample_bytes,
        batch_requests=float(size),
        notes=("Samples are taken to be read one by one, with a request for each",),
    )
    service_s = float(need.cpu_s.mean() + need.waited_s.mean())
    return replace(need, workers=min(MAX_WORKERS, ceil(service_s / float(need.step_s.mean())) + 1))


def _of_torch(evidence: Evidence) -> RankNeed:
    """By its fetches; of a loader whose workers nobody saw, the steps alone."""
    workload, notes = workload_of(evidence)
    told = _told(evidence)
    if workload is None:
        return _steps_alone(evidence, **told, notes=(*notes, "What a batch takes to make is left out"))
    read = mean([fetch.read_bytes for fetch in evidence.workers.fetches])
    requests = mean([fetch.reads for fetch in evidence.workers.fetches])
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
    batches = sum(lines[0].at_s <= step.at_s < lines[-1].at_s for step in evidence.loop.steps) if lines else 0
    if not batches:
        return _steps_alone(evidence, **told, notes=("The loader's hops were not recorded: its work is left out",))
    first, last = lines[0], lines[-1]
    read = (last.bytes_read - first.bytes_read) / batches
    decoding_s = (_busy_s(last, "decode") - _busy_s(first, "decode")) / batches
    size = evidence.settings.in_force("block_bytes")
    block_bytes = size if isinstance(size, int) and size > 0 else BLOCK_BYTES
    return _steps_alone(
        evidence,
        **told,
        cpu_s=np.full(len(evidence.contention.step_s), max(0.0, decoding_s)),
        batch_bytes=read if read > 0 else None,
        batch_requests=read / block_bytes if read > 0 else None,
        workers=max(1, last.workers),
        prefetch=max(2, ceil(last.lookahead / max(1, last.workers))),
    )


def _steps_alone(evidence: Evidence, **known: Any) -> RankNeed:
    nothing = np.zeros(len(evidence.contention.step_s))
    fields = {
        "cpu_s": nothing,
        "waited_s": nothing,
        "batch_bytes": None,
        "batch_requests": None,
        "workers": max(1, evidence.settings.num_workers),
        "prefetch": evidence.settings.prefetch_factor,
        "cores": evidence.machine.cores,
        "step_s": evidence.contention.step_s,
        "step_cpu_s": evidence.contention.step_s * evidence.contention.step_cpu,
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

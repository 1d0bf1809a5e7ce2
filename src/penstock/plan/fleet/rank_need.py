"""The resources that one rank of a training needs, from a recording or from probes of one node.

Every plan for many ranks begins here: cluster.py multiplies the need by the ranks, forecast.py simulates them together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf, isnan
from typing import Any, Literal, Self

import numpy as np

from penstock.core.arrays import mean
from penstock.core.types import Floats
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.verdict import STEPS_MIN, RunDiagnosis
from penstock.errors import RecordingError, SettingError
from penstock.model.workload import Workload
from penstock.options import BLOCK_BYTES
from penstock.plan.data_changes import HALF_SIDE
from penstock.plan.from_probes import StepFacts, probed_workload
from penstock.plan.predict import thinned
from penstock.plan.scenario_from_evidence import observed_workload, samples_per_batch
from penstock.plan.worker_count import workers_to_keep_up
from penstock.probe.results import ProbedValues
from penstock.recording.format import HopsLine

BLOCK_READS = 1.5
"""Reads per block up to which a run counts as reading in blocks already."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RankNeed:
    """The time and the data that one rank needs for each batch, in seconds as they are without other ranks."""

    source: Literal["recording", "probes"]
    samples_per_batch: float
    cpu_s: Floats
    """Making a batch, on a core."""
    waited_s: Floats
    """Making a batch, in anything but computing: mostly waiting for bytes."""
    step_s: Floats
    """The step of the training loop, receiving the batch included."""
    step_cpu_s: Floats
    """The part of the step that is on a core."""
    batch_bytes: float | None
    """Bytes read for a batch; None where they could not be counted."""
    batch_requests: float | None
    """Requests for a batch; None where they could not be counted."""
    workers: int
    prefetch: int
    cores: float
    """Cores of the node that was measured."""
    samples: float | None = None
    """Samples of an epoch; None where they are not known."""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.samples_per_batch < inf:
            raise SettingError("how many samples a batch has is not known, so nothing can be counted")
        if not self.step_s.mean() > 0:
            raise SettingError(
                "a step that takes no time needs unlimited data", advice="Record a training that computes"
            )

    @classmethod
    def from_workload(cls, workload: Workload, **known: Any) -> Self:
        """Take the times from a workload; a lock belongs to one rank, so waiting for it counts as waiting."""
        return cls(
            cpu_s=workload.cpu_s,
            waited_s=workload.latency_s + workload.io_s + workload.lock_s,
            step_s=workload.step_s + workload.receive_s,
            step_cpu_s=workload.step_cpu_s + workload.receive_s,
            workers=workload.workers,
            prefetch=workload.prefetch,
            cores=workload.cores,
            **known,
        )

    @property
    def sample_bytes(self) -> float | None:
        """Bytes read for a sample."""
        return None if self.batch_bytes is None else self.batch_bytes / self.samples_per_batch

    @property
    def dataset_bytes(self) -> float | None:
        """Bytes that an epoch reads; None where they are not known."""
        return None if self.samples is None or self.sample_bytes is None else self.samples * self.sample_bytes

    @property
    def computing_s(self) -> float:
        """Mean core seconds per batch: making it, receiving it, and the step's own."""
        return float(self.cpu_s.mean() + self.step_cpu_s.mean())

    def with_dataset(self, size_bytes: float) -> Self:
        """Return the need for a dataset of this size, with samples like these."""
        if self.sample_bytes is None:
            raise SettingError(
                "bytes were not counted, so how many samples a dataset has does not follow from its size"
            )
        return replace(self, samples=size_bytes / self.sample_bytes)


def expected_maximum(seconds: Floats, ranks: int) -> float:
    """Return the mean of the longest of so many random draws from these values."""
    ranked = np.sort(seconds)
    share = (np.arange(len(ranked) + 1) / len(ranked)) ** ranks
    return float((ranked * np.diff(share)).sum())


# -- the effect of packing -------------------------------------------------------------------------------------------


def in_blocks(need: RankNeed) -> RankNeed | None:
    """Return the need with the same bytes in shards that are read in blocks; None if nothing changes or is known.

    Waiting is assumed to be proportional to the number of requests, as it is where each request has its latency.
    """
    if need.batch_bytes is None or need.batch_requests is None:
        return None
    blocks = need.batch_bytes / BLOCK_BYTES
    if need.batch_requests <= BLOCK_READS * blocks:
        return None
    return replace(need, batch_requests=blocks, waited_s=need.waited_s * (blocks / need.batch_requests))


def with_half_side(need: RankNeed) -> RankNeed | None:
    """Return the need with images packed at half the side: a quarter of pixels, bytes and decoding time."""
    if need.batch_bytes is None:
        return None
    packed = in_blocks(need) or need
    requests = None if packed.batch_requests is None else packed.batch_requests * HALF_SIDE
    return replace(
        packed,
        batch_bytes=need.batch_bytes * HALF_SIDE,
        batch_requests=requests,
        cpu_s=packed.cpu_s * HALF_SIDE,
        waited_s=packed.waited_s * HALF_SIDE,
    )


# -- from probes -----------------------------------------------------------------------------------------------------

ADVICE_STEP = "Give --step-ms, or the recording of `penstock run --probe compute`"


def need_from_probes(found: ProbedValues, step: StepFacts) -> RankNeed:
    """Return the need with as many workers as keep up with the step; samples are read one by one, as in a plan."""
    if not step.step_s:
        raise SettingError("the time of a step is not known, so any amount of data is too little", advice=ADVICE_STEP)
    workload = probed_workload(found, step)
    assert found.decode is not None
    assert found.ipc is not None
    size = found.ipc.batch_size
    need = RankNeed.from_workload(
        workload,
        source="probes",
        samples_per_batch=float(size),
        batch_bytes=size * found.decode.sample_bytes,
        batch_requests=float(size),
        notes=("Samples are assumed to be read one by one, with a request for each",),
    )
    batch_s = float(need.cpu_s.mean() + need.waited_s.mean())
    return replace(need, workers=workers_to_keep_up(batch_s, float(need.step_s.mean())))


# -- from a recording ------------------------------------------------------------------------------------------------

COUPLED_STEPS = (
    "The recorded steps are those of {ranks} ranks, and contain the waiting for the slowest of them: it is counted "
    "twice here"
)


def need_from_diagnosis(run: RunDiagnosis) -> RankNeed:
    """Return the need of the loader with the longest waits."""
    if run.steady_loader is None:
        steps = max((len(loader.evidence.loop.steps) for loader in run.loaders), default=0)
        raise RecordingError(
            f"{steps} steps are too few to plan from", advice=f"Let it train for {5 * STEPS_MIN}, then plan"
        )
    evidence = run.steady_loader.evidence
    need = _need_of_penstock(evidence) if evidence.loader.type == "penstock" else _need_of_torch(evidence)
    ranks = run.recording.run.world_size
    notes = (*run.recording.notes, *((COUPLED_STEPS.format(ranks=ranks),) if ranks > 1 else ()))
    return replace(need, notes=(*notes, *need.notes))


def _need_of_torch(evidence: Evidence) -> RankNeed:
    """Return the need of a torch DataLoader by its fetches; the steps alone if its workers were not recorded."""
    workload, notes = observed_workload(evidence)
    known = _known_facts(evidence)
    if workload is None:
        return _need_of_steps(evidence, **known, notes=(*notes, "The time to make a batch is left out"))
    read = mean([fetch.read_bytes for fetch in evidence.workers.fetches])
    requests = mean([fetch.reads for fetch in evidence.workers.fetches])
    counted = ("A read call of a worker counts as a request: a file system may merge them, or need more",)
    return RankNeed.from_workload(
        thinned(workload),
        **known,
        batch_bytes=read or None,
        batch_requests=requests or None,
        notes=(*notes, *(counted if requests else ())),
    )


def _need_of_penstock(evidence: Evidence) -> RankNeed:
    """Return the need of a penstock.Loader by its hops: it reads blocks ahead of decoding, so no worker waits."""
    lines = [line for line in evidence.recording.hops if line.loader == evidence.loader.loader]
    known = _known_facts(evidence)
    batches = sum(lines[0].at_s <= step.at_s < lines[-1].at_s for step in evidence.loop.steps) if lines else 0
    if not batches:
        return _need_of_steps(evidence, **known, notes=("The loader's hops were not recorded: its work is left out",))
    first, last = lines[0], lines[-1]
    read = (last.bytes_read - first.bytes_read) / batches
    decoding_s = (_busy_s(last, "decode") - _busy_s(first, "decode")) / batches
    size = evidence.settings.in_force("block_bytes")
    block_bytes = size if isinstance(size, int) and size > 0 else BLOCK_BYTES
    return _need_of_steps(
        evidence,
        **known,
        cpu_s=np.full(len(evidence.contention.step_s), max(0.0, decoding_s)),
        batch_bytes=read if read > 0 else None,
        batch_requests=read / block_bytes if read > 0 else None,
        workers=max(1, last.workers),
        prefetch=max(2, ceil(last.lookahead / max(1, last.workers))),
    )


def _need_of_steps(evidence: Evidence, **known: Any) -> RankNeed:
    """Return a need with the steps of the run and the known fields; making a batch takes nothing by default."""
    nothing = np.zeros(len(evidence.contention.step_s))
    defaults = {
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
    return RankNeed(**{**defaults, **known})


def _known_facts(evidence: Evidence) -> dict[str, Any]:
    return {
        "source": "recording",
        "samples_per_batch": samples_per_batch(evidence),
        "samples": _epoch_samples(evidence),
    }


def _epoch_samples(evidence: Evidence) -> float | None:
    """Return the samples of an epoch over all ranks."""
    loader, per_batch = evidence.loader, samples_per_batch(evidence)
    if loader.dataset_size is not None:
        return float(loader.dataset_size)
    if loader.batches is None or isnan(per_batch):
        return None
    return loader.batches * per_batch * evidence.recording.run.world_size


def _busy_s(line: HopsLine, hop: str) -> float:
    return line.hops.get(hop, (0.0, 0.0, 0.0))[0]

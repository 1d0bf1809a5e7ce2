"""Derives the start of a proposal from the evidence of a recording: workload, settings and context of the run."""

from __future__ import annotations

from math import isnan

import numpy as np

from penstock.core.arrays import mean
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.ipc import BUSY_THREADS
from penstock.diagnose.evidence.storage_waits import REMOTE_MIN, StorageWaits, storage_waits
from penstock.diagnose.rules import cpu_oversubscribed, lock_contention
from penstock.diagnose.suspect import Remedy, Suspect
from penstock.diagnose.verdict import LoaderDiagnosis
from penstock.model.workload import STRAGGLER_MEDIANS, Workload
from penstock.plan.scenario import NO_START_COST, LoaderSettings, TrainingContext, WorkerStartCost
from penstock.plan.storage_model import on_storage

IN_ORDER_SINCE = (2, 6)
"""The torch version that introduced the setting in_order."""
USUAL_WAIT_QUANTILE = 0.9
"""Quantile of the batches' waits up to which a wait counts as usual."""
UNDETERMINED = (
    "Workers wait for bytes, and the recording does not show whether they share one device: no gain is expected of "
    "more workers. Halve num_workers: the same rate says they do, half the rate says each waits on its own"
)


# -- the workload --------------------------------------------------------------------------------------------------


def observed_workload(evidence: Evidence) -> tuple[Workload | None, tuple[str, ...]]:
    """Return the run as a workload whose waiting is divided by its cause, and notes on what could not be divided.

    Waiting for latency scales with the number of workers; waiting for one device or one lock does not. The workload is
    None if no fetch of a worker was recorded.
    """
    workload = evidence.workload
    if workload is None:
        return None, ("The workers' fetches were not recorded: nothing is proposed for their number",)
    workload = _with_lock(_with_loop_work(workload, evidence), evidence)
    waits = storage_waits(evidence)
    if waits is None or waits.remote_share > REMOTE_MIN or waits.scaling == "scales":
        return workload, ()
    return _with_device(workload, evidence, waits), (UNDETERMINED,) if waits.scaling is None else ()


def _with_loop_work(workload: Workload, evidence: Evidence) -> Workload:
    """Move the loop's own work while it receives a batch to the step: it stays, however the batch is made."""
    observed_s = mean(evidence.loop.phase_s("sampler")) + evidence.contention.interpreter_s
    own_s = np.minimum(observed_s, workload.receive_s)
    return workload.replace(receive_s=workload.receive_s - own_s, step_s=workload.step_s + own_s)


def _with_lock(workload: Workload, evidence: Evidence) -> Workload:
    """Turn waiting for a lock into the time that it is held: its holders together fill the time between batches."""
    if evidence.workers.states.get("lock", 0.0) < lock_contention.LOCK_SHARE_MIN:
        return workload
    locked_s = workload.latency_s * evidence.workers.blocked_in("lock")
    held_s = locked_s * min(1.0, evidence.loop.cycle_s / max(float(locked_s.mean()), 1e-9))
    return workload.replace(latency_s=workload.latency_s - locked_s, lock_s=held_s)


def _with_device(workload: Workload, evidence: Evidence, waits: StorageWaits) -> Workload:
    """Return the workload on a storage whose curve for one and for many readers follows from the rate of the run.

    The usual wait of a batch is for the device; what is far beyond it is late and delays no other worker. The median
    would not be usual: where the system reads ahead, one batch waits for data that several batches then find in memory.
    """
    io_s = np.minimum(workload.latency_s, STRAGGLER_MEDIANS * np.quantile(workload.latency_s, USUAL_WAIT_QUANTILE))
    rate = 1 / evidence.loop.cycle_s
    in_flight = min(rate * float(io_s.mean()), float(max(1, workload.workers)))
    if in_flight <= 0:
        return workload
    together, readers = (1.0, 2) if waits.speedup is None else (waits.speedup, max(2, waits.readers))
    if waits.scaling == "constant":
        together = max(1.0, together)  # a little less than the rate of one reader is measurement noise
    single_head = waits.scaling == "thrashes"
    if single_head:
        readers, in_flight = 2, 2.0  # the head moves between two readers as it does between many
    scale = float(np.interp(in_flight, (0, 1, readers), (0, 1, together)))
    # The curve counts batches, not bytes: reads whose bytes could not be counted take time all the same.
    curve = ((1.0, rate / scale, 0.0), (float(readers), rate / scale * together, 0.0))
    waiting_s = {"latency_s": workload.latency_s - io_s, "io_s": io_s}
    ahead = not single_head and _system_reads_ahead(evidence)
    return on_storage(workload.replace(**waiting_s), curve, batch_bytes=1.0, single_head=single_head, ahead=ahead)


def _system_reads_ahead(evidence: Evidence) -> bool:
    """Return whether most batches found their bytes in memory and a few made the device read those of many."""
    device = np.array([fetch.device_bytes for fetch in evidence.workers.fetches])
    read = np.array([fetch.read_bytes for fetch in evidence.workers.fetches])
    return bool(len(read)) and float(np.median(device)) == 0 and float(device.sum()) > float(read.sum()) / 2


def samples_per_batch(evidence: Evidence) -> float:
    """Return the counted samples per batch, else the batch size in force; NaN where neither is known."""
    size = evidence.settings.in_force("batch_size")
    counted = evidence.loop.samples_per_batch
    return float(size) if isnan(counted) and isinstance(size, int) and size > 0 else counted


# -- the settings --------------------------------------------------------------------------------------------------


def observed_settings(evidence: Evidence) -> LoaderSettings:
    """Return the settings in force; torch's defaults where the recording does not have them."""
    context = evidence.settings.in_force("multiprocessing_context")
    return LoaderSettings(
        num_workers=evidence.settings.num_workers,
        prefetch_factor=evidence.settings.prefetch_factor,
        pin_memory=evidence.settings.in_force("pin_memory") is True,
        persistent_workers=evidence.settings.in_force("persistent_workers") is True,
        in_order=evidence.settings.in_order,
        multiprocessing_context=context if isinstance(context, str) else None,
    )


# -- the context ---------------------------------------------------------------------------------------------------


def observed_context(loader: LoaderDiagnosis, batch_bytes: int | None = None) -> TrainingContext:
    """Return the machine and the training as recorded; without `batch_bytes` a batch has the bytes read for it."""
    evidence = loader.evidence
    machine = evidence.recording.run.machine
    read_bytes = mean([fetch.read_bytes for fetch in evidence.workers.fetches])
    effective = evidence.workers.effective_workers
    return TrainingContext(
        platform=machine.platform,
        gpus=len(machine.gpus),
        has_in_order=_has_in_order(evidence),
        free_bytes=_free_bytes(evidence),
        shared_free_bytes=machine.shared_bytes,
        batch_bytes=batch_bytes if batch_bytes is not None else round(read_bytes) or None,
        worker_bytes=max(_worker_memory(evidence), default=None),
        worker_start=_worker_start(evidence),
        epoch_batches=evidence.loader.batches,
        epochs=max(2, len({step.epoch for step in evidence.loop.all_steps})),
        dataset_workers=effective if effective < evidence.settings.num_workers else None,
        copy_s=0.0 if evidence.in_use.get("pinned_batches") else mean(evidence.loop.phase_s("h2d")),
        device_s=evidence.loop.device_s("h2d"),
        threads_per_worker=evidence.machine.threads_per_worker,
        single_thread_remedy=_single_thread_remedy(loader),
    )


def _has_in_order(evidence: Evidence) -> bool:
    if "in_order" in evidence.loader.settings:
        return True
    numbers = (evidence.recording.run.machine.torch or "").split(".")[:2]
    return len(numbers) == 2 and all(n.isdigit() for n in numbers) and tuple(map(int, numbers)) >= IN_ORDER_SINCE


def _free_bytes(evidence: Evidence) -> int | None:
    """Return the lowest free memory plus what the workers held; None where the machine was not sampled."""
    free = [sample.memory_free_bytes for sample in evidence.machine.system if sample.memory_free_bytes > 0]
    if not free:
        return None
    return min(free) + round(evidence.settings.num_workers * mean(_worker_memory(evidence)))


def _worker_memory(evidence: Evidence) -> list[int]:
    return [process.memory_bytes for process in evidence.machine.worker_processes if process.memory_bytes > 0]


def _worker_start(evidence: Evidence) -> WorkerStartCost:
    """Return the cost from later epochs where there are any: the first one also fills caches."""
    waits = evidence.loop.startup_s[1:] if len(evidence.loop.startup_s) > 1 else evidence.loop.startup_s
    if not len(waits):
        return NO_START_COST
    usual_s = mean(evidence.loop.wait_s)
    return WorkerStartCost.measured(
        float(np.median(waits)), usual_s, evidence.workers.mean_fetch_s, evidence.settings.num_workers
    )


def _helper_thread_cores(evidence: Evidence) -> float:
    """Return the cores that the other threads of all workers used."""
    processes = evidence.machine.worker_processes
    extra = sum(p.cpu - p.thread_cpu for p in processes if p.thread_cpu is not None)
    return extra / max(1, len(evidence.machine.system))


def _single_thread_remedy(loader: LoaderDiagnosis) -> Remedy | None:
    """Return the remedy of the rule, if threads crowd the cores and not the number of workers."""
    evidence = loader.evidence
    if evidence.machine.threads_per_worker < cpu_oversubscribed.HELPER_THREADS_MIN:
        return None
    if _helper_thread_cores(evidence) < BUSY_THREADS:
        return None
    answer = loader.answers.get("cpu_oversubscribed")
    return answer.remedy if isinstance(answer, Suspect) else None

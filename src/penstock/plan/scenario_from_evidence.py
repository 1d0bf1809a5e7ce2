"""From what was seen of a loader to what a proposal starts from: the run, its settings, its place."""

from __future__ import annotations

import numpy as np

from penstock.core.arrays import mean
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.ipc import BUSY_THREADS
from penstock.diagnose.evidence.storage_waits import REMOTE, StorageWaits, storage_waits
from penstock.diagnose.rules import cpu_oversubscribed, lock_contention
from penstock.diagnose.suspect import Remedy, Suspect
from penstock.model.workload import STRAGGLES, Workload
from penstock.plan.scenario import LoaderSettings, TrainingContext, WorkerStartCost
from penstock.plan.storage_model import on_storage

IN_ORDER_SINCE = (2, 6)
"""The torch that brought the setting."""
USUAL = 0.9
"""Of the batches wait no longer than usual."""
UNDETERMINED = (
    "Workers wait for bytes, and nothing that was seen says whether they share one device: no gain is expected of "
    "more workers. Halve num_workers: the same rate says they do, half the rate says each waits on its own"
)


# -- the run -------------------------------------------------------------------------------------------------------


def workload_of(evidence: Evidence) -> tuple[Workload | None, tuple[str, ...]]:
    """The run with its waiting sorted by what it is for, and what could not be sorted; None without fetches.

    Waiting alone scales with the workers; waiting for one device, or for one lock, does not.
    """
    workload = evidence.workload
    if workload is None:
        return None, ("What workers did was not seen: nothing is proposed for their number",)
    workload = _with_lock(_with_own(workload, evidence), evidence)
    seen = storage_waits(evidence)
    if seen is None or seen.remote > REMOTE or seen.manner == "apart":
        return workload, ()
    return _with_device(workload, evidence, seen), (UNDETERMINED,) if seen.manner is None else ()


def _with_own(workload: Workload, evidence: Evidence) -> Workload:
    """What the loop does for itself while it takes a batch stays, whoever makes the batch: it belongs to the step."""
    seen_s = mean(evidence.loop.phase_s("sampler")) + evidence.contention.interpreter_s
    own_s = np.minimum(seen_s, workload.handover_s)
    return workload.with_(handover_s=workload.handover_s - own_s, step_s=workload.step_s + own_s)


def _with_lock(workload: Workload, evidence: Evidence) -> Workload:
    """Whoever waits for a lock waits for its holders: all of them together fill the time from batch to batch."""
    if evidence.workers.states.get("lock", 0.0) < lock_contention.LEAST:
        return workload
    locked_s = workload.alone_s * evidence.workers.blocked_in("lock")
    held_s = locked_s * min(1.0, evidence.loop.cycle_s / max(float(locked_s.mean()), 1e-9))
    return workload.with_(alone_s=workload.alone_s - locked_s, serial_s=held_s)


def _with_device(workload: Workload, evidence: Evidence, seen: StorageWaits) -> Workload:
    """On a storage that gives so much to one reader and so much to all; both follow from what the run got.

    A batch's usual wait is for the device; what is far beyond it came late, and holds up nobody else. The median would
    not be usual: where the system reads ahead, one batch waits for what several find read.
    """
    io_s = np.minimum(workload.alone_s, STRAGGLES * np.quantile(workload.alone_s, USUAL))
    rate = 1 / evidence.loop.cycle_s
    in_flight = min(rate * float(io_s.mean()), float(max(1, workload.workers)))
    if in_flight <= 0:
        return workload
    together, readers = (1.0, 2) if seen.together is None else (seen.together, max(2, seen.readers))
    if seen.manner == "share":
        together = max(1.0, together)  # a little less than one gets alone is chance
    one_head = seen.manner == "thrash"
    if one_head:
        readers, in_flight = 2, 2.0  # between two the head goes back and forth as it does between many
    scale = float(np.interp(in_flight, (0, 1, readers), (0, 1, together)))
    # In batches, not in bytes: reads that nobody could count take their time all the same.
    curve = ((1.0, rate / scale, 0.0), (float(readers), rate / scale * together, 0.0))
    waiting_s = {"alone_s": workload.alone_s - io_s, "io_s": io_s}
    ahead = not one_head and _reads_ahead(evidence)
    return on_storage(workload.with_(**waiting_s), curve, batch_bytes=1.0, single_head=one_head, ahead=ahead)


def _reads_ahead(evidence: Evidence) -> bool:
    """Most batches found their bytes in memory, and few had the device bring those of many."""
    brought = np.array([fetch.device_bytes for fetch in evidence.workers.fetches])
    read = np.array([fetch.read_bytes for fetch in evidence.workers.fetches])
    return bool(len(read)) and float(np.median(brought)) == 0 and float(brought.sum()) > float(read.sum()) / 2


# -- its settings --------------------------------------------------------------------------------------------------


def settings_of(evidence: Evidence) -> LoaderSettings:
    """As in force; torch's own where a recording does not say."""
    context = evidence.settings.in_force("multiprocessing_context")
    return LoaderSettings(
        num_workers=evidence.settings.num_workers,
        prefetch_factor=evidence.settings.prefetch_factor,
        pin_memory=evidence.settings.in_force("pin_memory") is True,
        persistent_workers=evidence.settings.in_force("persistent_workers") is True,
        in_order=evidence.settings.in_order,
        multiprocessing_context=context if isinstance(context, str) else None,
    )


# -- its place -----------------------------------------------------------------------------------------------------


def place_of(evidence: Evidence, batch_bytes: int | None = None) -> TrainingContext:
    """The machine and the training, as recorded. A batch is at least the bytes that were read for it."""
    machine = evidence.recording.run.machine
    read_bytes = mean([fetch.read_bytes for fetch in evidence.workers.fetches])
    dealt = evidence.workers.effective_workers
    return TrainingContext(
        platform=machine.platform,
        gpus=len(machine.gpus),
        has_in_order=_has_in_order(evidence),
        free_bytes=_free_bytes(evidence),
        shared_free_bytes=machine.shared_bytes,
        batch_bytes=batch_bytes if batch_bytes is not None else round(read_bytes) or None,
        worker_bytes=max(_worker_memory(evidence), default=None),
        worker_start=_start(evidence),
        epoch_batches=evidence.loader.batches,
        epochs=max(2, len({step.epoch for step in (*evidence.loop.first_steps, *evidence.loop.steps)})),
        dataset_workers=dealt if dealt < evidence.settings.num_workers else None,
        copy_s=mean(evidence.loop.phase_s("h2d")),
        device_s=evidence.loop.device_s("h2d"),
        threads_per_worker=evidence.machine.threads_per_worker,
        single_thread_remedy=_uncrowded(evidence),
    )


def _has_in_order(evidence: Evidence) -> bool:
    if "in_order" in evidence.loader.settings:
        return True
    numbers = (evidence.recording.run.machine.torch or "").split(".")[:2]
    return len(numbers) == 2 and all(n.isdigit() for n in numbers) and tuple(map(int, numbers)) >= IN_ORDER_SINCE


def _free_bytes(evidence: Evidence) -> int | None:
    """The least that was free, and what the workers held; None where nobody looked."""
    free = [look.memory_free_bytes for look in evidence.machine.system if look.memory_free_bytes > 0]
    if not free:
        return None
    return min(free) + round(evidence.settings.num_workers * mean(_worker_memory(evidence)))


def _worker_memory(evidence: Evidence) -> list[int]:
    return [process.memory_bytes for process in evidence.machine.worker_processes if process.memory_bytes > 0]


def _start(evidence: Evidence) -> WorkerStartCost:
    """From later passes where there are any: the first one also fills caches."""
    waits = evidence.loop.startup_s[1:] if len(evidence.loop.startup_s) > 1 else evidence.loop.startup_s
    if not len(waits):
        return WorkerStartCost(0.0)
    usual = mean(evidence.loop.wait_s)
    return WorkerStartCost.measured(
        float(np.median(waits)), usual, evidence.workers.mean_fetch_s, evidence.settings.num_workers
    )


def _extra_cores(evidence: Evidence) -> float:
    """That all workers' other threads used."""
    mine = evidence.machine.worker_processes
    return sum(p.cpu - p.thread_cpu for p in mine if p.thread_cpu is not None) / max(1, len(evidence.machine.system))


def _uncrowded(evidence: Evidence) -> Remedy | None:
    """The rule's own cure, where it is threads that crowd the cores and not the number of workers."""
    if evidence.machine.threads_per_worker < cpu_oversubscribed.EXTRA_THREADS or _extra_cores(evidence) < BUSY_THREADS:
        return None
    answer = cpu_oversubscribed.check(evidence)
    return answer.remedy if isinstance(answer, Suspect) else None

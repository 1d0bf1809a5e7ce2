"""The run has more threads that want to run than there are cores.

There are too many workers, or libraries start threads of their own in every worker (OpenMP, MKL, OpenCV: cores × cores
threads). The thread of the training loop then waits for a core, and its step takes longer although it does no more.
Workers may also be restricted to fewer cores than the run has (`taskset`, `numactl`, an affinity that a library sets at
import and that workers inherit): then they wait for cores while other cores are idle.

Evidence: the loop or the workers wait for a core for a good part of their time, and it is the run's own threads that
they wait for.

Similar causes: `decode_bound` (the cores are full there too, but the loop's thread gets its core, or fewer workers
would not help) and `noisy_neighbour` (there, processes outside the run use the cores).

Remedy: no more workers than cores, and one library thread per worker (`torch.set_num_threads(1)`,
`cv2.setNumThreads(0)`, `OMP_NUM_THREADS=1`); no affinity that keeps the workers together.
"""

from __future__ import annotations

import numpy as np

from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.worker_cpu import best_num_workers
from penstock.diagnose.suspect import Answer, RuledOut, Suspect
from penstock.model.edits import with_workers
from penstock.model.workload import Workload

QUEUE_MIN = 0.15
"""Share of its time that the main process or a worker waits for a core."""
QUICK_QUANTILE = 0.05
"""Quantile of the batches that were made while the other workers were idle."""
HELPER_THREADS_MIN = 1.25
"""Library threads compute if a worker uses this multiple of the CPU time of the thread that makes batches..."""
HELPER_CORES_MIN = 0.1
"""...and its other threads use more cores than the one that sends batches."""


def check(evidence: Evidence) -> Answer:
    """Suspect it if threads wait for cores, and it is the run's own threads that use them."""
    machine, num_workers = evidence.machine, evidence.settings.num_workers
    worker_queue = evidence.workers.share_of_fetch(evidence.workers.queue_s)
    if max(machine.main_queue, worker_queue) < QUEUE_MIN or num_workers == 0:
        return None
    threads = machine.threads_per_worker
    if machine.workers_pinned_together:
        return _pinned_together(evidence, worker_queue)
    spinning = threads >= HELPER_THREADS_MIN and machine.helper_threads_cpu >= HELPER_CORES_MIN
    if num_workers <= machine.cores and not spinning:
        return RuledOut(f"{num_workers} workers with one thread each fit on {machine.cores:g} cores")
    if machine.others_cpu > machine.run_cpu / 2 or machine.throttled > QUEUE_MIN:
        return RuledOut("other processes or a CPU quota cause the waiting for cores")
    best = best_num_workers(evidence, max(1, round(machine.cores)))
    return Suspect(
        strength=0.85 if machine.main_queue >= QUEUE_MIN else 0.6,
        summary=f"{num_workers} workers and their threads are too many for {machine.cores:g} cores",
        evidence=(
            f"the main process waits for a core {machine.main_queue:.0%} of its time, "
            f"workers {worker_queue:.0%} of theirs",
            f"{num_workers} workers on {machine.cores:g} usable cores; each uses {threads:.1f} times the CPU time of "
            "the thread that makes its batches",
        ),
        settings={} if spinning else {"num_workers": best},
        advice=f"num_workers={best}, and one library thread in each",
        remedy=lambda workload: _one_thread_each(workload, evidence) if spinning else with_workers(workload, best),
    )


def _pinned_together(evidence: Evidence, worker_queue: float) -> Suspect:
    """Describe workers that wait for cores while there are idle ones that they may not use."""
    machine = evidence.machine
    return Suspect(
        strength=0.9,
        summary=f"A worker may run on {machine.worker_cores:g} of {machine.cores:g} cores only, and waits for one",
        evidence=(
            f"workers wait for a core {worker_queue:.0%} of their time while {machine.free_cores:.1f} are free",
            f"the main process may run on {machine.cores:g} cores, a worker on {machine.worker_cores:g}",
        ),
        advice="Lift the workers' affinity: os.sched_setaffinity in worker_init_fn, taskset, numactl, KMP_AFFINITY",
        remedy=lambda workload: workload.replace(cores=machine.cores),
    )


def _one_thread_each(workload: Workload, evidence: Evidence) -> Workload:
    """Return the workload with one thread per worker: the loop gets its core at once, and the workers share the rest.

    Threads of a library spin while they wait for each other, longer if more threads want a core. The CPU time of a
    batch without them is taken from the quickest batches, whose threads happened to run at the same time.
    """
    loop_cores = min(workload.cores / 2, evidence.contention.step_cpu * (1 - evidence.loop.wait_share))
    cpu_s = np.minimum(workload.cpu_s, np.quantile(workload.cpu_s, QUICK_QUANTILE))
    return workload.replace(step_cpu_s=workload.step_cpu_s * 0, cores=workload.cores - loop_cores, cpu_s=cpu_s)

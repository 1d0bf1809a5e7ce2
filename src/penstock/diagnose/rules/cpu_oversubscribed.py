"""More of the run's own threads want to run than there are cores.

Too many workers, or libraries that start threads of their own in every worker (OpenMP, MKL, OpenCV: cores × cores
threads), put the training loop's thread at the end of a long line: its step takes longer although it does no more.

Looks like `decode_bound`: there, too, the cores are full; but there the loop's own thread gets its core, or fewer
workers would not help. Looks like `noisy_neighbour`: but here the run's own processes fill the line.

Workers may also be held on fewer cores than the run has (`taskset`, `numactl`, an affinity that a library sets at
import and that workers inherit): then they stand in line while other cores have nothing to do.

Remedy: no more workers than cores, one library thread per worker (`torch.set_num_threads(1)`,
`cv2.setNumThreads(0)`, `OMP_NUM_THREADS=1`); no affinity that keeps workers together.
"""

from __future__ import annotations

import numpy as np

from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.worker_cpu import best_workers
from penstock.diagnose.suspect import Answer, RuledOut, Suspect
from penstock.model.edits import with_workers
from penstock.model.workload import Workload

LEAST_QUEUE = 0.15
"""Share of its time that the main process stood in line."""
QUICK = 0.05
"""Of the batches: made while the other workers had nothing to do."""
EXTRA_THREADS = 1.25
"""Times what the thread uses that makes batches..."""
HANDING_OVER = 0.1
"""...and more cores than the thread that sends them."""


def check(evidence: Evidence) -> Answer:
    """The line is long, and it is ours."""
    queue = max(evidence.machine.main_queue, evidence.workers.share_of_fetch(evidence.workers.queue_s))
    if queue < LEAST_QUEUE or evidence.settings.num_workers == 0:
        return None
    threads = evidence.machine.threads_per_worker
    if evidence.machine.workers_pinned_together:
        return _held_together(evidence)
    spinning = threads >= EXTRA_THREADS and evidence.machine.helper_threads_cpu >= HANDING_OVER
    if evidence.settings.num_workers <= evidence.machine.cores and not spinning:
        return RuledOut(
            f"{evidence.settings.num_workers} workers with one thread each fit on {evidence.machine.cores:g} cores"
        )
    if evidence.machine.others_cpu > evidence.machine.run_cpu / 2 or evidence.machine.throttled > LEAST_QUEUE:
        return RuledOut("the line is not of the run's own making")
    best = best_workers(evidence, max(1, round(evidence.machine.cores)))
    return Suspect(
        strength=0.85 if evidence.machine.main_queue >= LEAST_QUEUE else 0.6,
        summary=f"{evidence.settings.num_workers} workers and their threads crowd {evidence.machine.cores:g} cores",
        evidence=(
            f"the main process stands in line for a core {evidence.machine.main_queue:.0%} of its time, "
            f"workers {evidence.workers.share_of_fetch(evidence.workers.queue_s):.0%} of theirs",
            f"{evidence.settings.num_workers} workers on {evidence.machine.cores:g} usable cores, {threads:.1f} cores' worth of threads "
            "running in each while it makes a batch",
        ),
        advice=f"num_workers={best}, and one library thread in each",
        remedy=lambda workload: _uncrowded(workload, evidence) if spinning else with_workers(workload, best),
    )


def _held_together(evidence: Evidence) -> Suspect:
    """Cores are free, but not for the workers."""
    queue = evidence.workers.share_of_fetch(evidence.workers.queue_s)
    return Suspect(
        strength=0.9,
        summary=f"A worker may run on {evidence.machine.worker_cores:g} of {evidence.machine.cores:g} cores only, and stands in line",
        evidence=(
            f"workers stand in line for a core {queue:.0%} of their time while {evidence.machine.free_cores:.1f} are free",
            f"the main process may run on {evidence.machine.cores:g} cores, a worker on {evidence.machine.worker_cores:g}",
        ),
        advice="Lift the workers' affinity: os.sched_setaffinity in worker_init_fn, taskset, numactl, KMP_AFFINITY",
        remedy=lambda workload: workload.replace(cores=evidence.machine.cores),
    )


def _uncrowded(workload: Workload, evidence: Evidence) -> Workload:
    """The loop's thread gets its core whenever it wants one, and the workers share the rest.

    Threads of a library spin while they wait for one another, and the more are in the line the longer: what a batch
    computes without them is what the quickest did, whose threads happened to run together.
    """
    loop = min(workload.cores / 2, evidence.contention.step_cpu * (1 - evidence.loop.wait_share))
    cpu_s = np.minimum(workload.cpu_s, np.quantile(workload.cpu_s, QUICK))
    return workload.replace(step_cpu_s=workload.step_cpu_s * 0, cores=workload.cores - loop, cpu_s=cpu_s)

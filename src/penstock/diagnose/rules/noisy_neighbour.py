"""Processes outside the run take the cores.

The same training alone on the machine would be faster.

Evidence: processes of the run wait for cores, the cores are full, and processes that do not belong to the run use a
good part of them.

Similar causes: `decode_bound` and `cpu_oversubscribed` (there, the run's own processes fill the cores) and `cpu_quota`
(there, cores are free and the cgroup stops the run).

Remedy: another machine or time, cores reserved for the run (cpuset, affinity), or ending the other job.
"""

from __future__ import annotations

from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.worker_cpu import CORES_FULL
from penstock.diagnose.suspect import Answer, Suspect
from penstock.model.edits import without_competitors

OTHERS_MIN_CORES = 0.25
"""Cores that processes outside the run use."""
QUEUE_MIN = 0.1
"""Share of its time that a process of the run waits for a core."""


def check(evidence: Evidence) -> Answer:
    """Suspect it if other processes use cores, the machine is full, and the run waits for cores."""
    load, cores = evidence.machine, evidence.recording.run.machine.cores
    worker_queue = evidence.workers.share_of_fetch(evidence.workers.queue_s)
    full = load.run_cpu + load.others_cpu >= CORES_FULL * cores
    if load.others_cpu < OTHERS_MIN_CORES or max(worker_queue, load.main_queue) < QUEUE_MIN or not full:
        return None
    return Suspect(
        strength=0.9,
        summary=f"Other processes take {load.others_cpu:.1f} of {cores} cores",
        evidence=(
            f"processes outside this run use {load.others_cpu:.1f} cores, the run {load.run_cpu:.1f}",
            f"workers wait for a core {worker_queue:.0%} of their time, the main process {load.main_queue:.0%}",
        ),
        advice="Give the run cores of its own, or move the other job",
        remedy=without_competitors,
    )

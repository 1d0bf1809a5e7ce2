"""Somebody else's processes take the cores.

The run's processes are ready to run and stand in line, while processes that do not belong to it use a good part of
the machine. The same training alone would be faster.

Looks like `decode_bound` and `cpu_oversubscribed` (but there the run's own processes fill the cores) and `cpu_quota`
(but there the cores are free and the cgroup holds the run back).

Remedy: another machine or time, cores of one's own (cpuset, affinity), or an end to the other job.
"""

from __future__ import annotations

from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.worker_cpu import FULL
from penstock.diagnose.suspect import Answer, Suspect
from penstock.model.edits import without_competitors

LEAST_CORES = 0.25
LEAST_QUEUE = 0.1
"""Share of its time that a process stood in line."""


def check(evidence: Evidence) -> Answer:
    """Others use cores, the machine is full, and ours wait for them."""
    queue = max(evidence.workers.share_of_fetch(evidence.workers.queue_s), evidence.machine.main_queue)
    full = evidence.machine.run_cpu + evidence.machine.others_cpu >= FULL * evidence.recording.run.machine.cores
    if evidence.machine.others_cpu < LEAST_CORES or queue < LEAST_QUEUE or not full:
        return None
    return Suspect(
        strength=0.9,
        summary=f"Other processes take {evidence.machine.others_cpu:.1f} of {evidence.recording.run.machine.cores} cores",
        evidence=(
            f"processes outside this run use {evidence.machine.others_cpu:.1f} cores, the run {evidence.machine.run_cpu:.1f}",
            f"workers stand in line for a core {evidence.workers.share_of_fetch(evidence.workers.queue_s):.0%} of their time, "
            f"the main process {evidence.machine.main_queue:.0%}",
        ),
        advice="Give the run cores of its own, or move the other job",
        remedy=without_competitors,
    )

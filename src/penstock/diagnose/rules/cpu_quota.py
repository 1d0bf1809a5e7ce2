"""The container's CPU quota holds the run back while the machine's cores are free.

A cgroup may use so many CPU-seconds per period; who has used them up is stopped until the next. `os.cpu_count()`
knows nothing of it, so worker counts chosen by it run into the wall, and all processes of the run stop together.

Looks like `decode_bound` and `noisy_neighbour`; the kernel's own count of throttled time tells it apart.

Remedy: a larger limit (`cpu.max`, the pod's `limits.cpu`), or cheaper samples; fewer workers do not bring back
speed.
"""

from __future__ import annotations

import numpy as np

from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.suspect import Answer, RuledOut, Suspect
from penstock.model.edits import with_cores, with_step
from penstock.model.workload import Workload

LEAST = 0.05
"""Share of the time throttled."""
UNSTOPPED = 0.1
"""Of the steps: so many fell between two stops."""


def check(evidence: Evidence) -> Answer:
    """The kernel says that it throttled us."""
    machine = evidence.recording.run.machine
    if evidence.machine.throttled < LEAST:
        return RuledOut("nothing was throttled") if machine.quota_cores is not None else None
    allowed = f"{machine.quota_cores:g}" if machine.quota_cores is not None else "fewer"
    return Suspect(
        strength=0.95,
        summary=f"The cgroup's CPU quota stops the run {evidence.machine.throttled:.0%} of the time",
        evidence=(
            f"throttled {evidence.machine.throttled:.0%} of the time, by the kernel's count",
            f"the quota allows {allowed} of {machine.cores} cores",
        ),
        advice="Raise the container's CPU limit, or make samples cheaper",
        remedy=lambda workload: _unlimited(workload, evidence),
    )


def _unlimited(workload: Workload, evidence: Evidence) -> Workload:
    """All cores of the machine, and steps like those that were not stopped."""
    cores = float(evidence.recording.run.machine.cores)
    step_s = np.minimum(workload.step_s, np.quantile(workload.step_s, UNSTOPPED))
    return with_step(with_cores(workload, cores), step_s)

"""The CPU quota of the container stops the run while cores of the machine are free.

A cgroup may use a number of CPU-seconds per period; when they are used up, its processes are stopped until the next
period. `os.cpu_count()` does not know the quota, so a number of workers chosen by it exceeds the quota, and all
processes of the run stop together.

Evidence: the kernel's own count of throttled time.

Similar causes: `decode_bound` and `noisy_neighbour` (there, nothing is throttled).

Remedy: a larger limit (`cpu.max`, the pod's `limits.cpu`), or cheaper samples. Fewer workers do not help.
"""

from __future__ import annotations

import numpy as np

from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.suspect import Answer, RuledOut, Suspect
from penstock.model.edits import with_cores, with_step
from penstock.model.workload import Workload

THROTTLED_MIN = 0.05
"""Share of the time in which the run is throttled."""
UNTHROTTLED_QUANTILE = 0.1
"""Quantile of the steps that were not stopped, because they fell between two stops."""


def check(evidence: Evidence) -> Answer:
    """Suspect it if the kernel counts throttled time."""
    machine, throttled = evidence.recording.run.machine, evidence.machine.throttled
    if throttled < THROTTLED_MIN:
        return RuledOut("nothing was throttled") if machine.quota_cores is not None else None
    allowed = f"{machine.quota_cores:g}" if machine.quota_cores is not None else "fewer"
    return Suspect(
        strength=0.95,
        summary=f"The cgroup's CPU quota stops the run {throttled:.0%} of the time",
        evidence=(
            f"throttled {throttled:.0%} of the time, by the kernel's count",
            f"the quota allows {allowed} of {machine.cores} cores",
        ),
        advice="Raise the container's CPU limit, or make samples cheaper",
        remedy=lambda workload: _without_quota(workload, machine.cores),
    )


def _without_quota(workload: Workload, cores: int) -> Workload:
    """Return the workload with all cores of the machine, and with steps like those that were not stopped."""
    step_s = np.minimum(workload.step_s, np.quantile(workload.step_s, UNTHROTTLED_QUANTILE))
    return with_step(with_cores(workload, float(cores)), step_s)

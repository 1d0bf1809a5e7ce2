"""The workers compute without a break, but some cores are idle.

Each worker uses at most one core. While the loop waits and cores are idle, more workers make more batches, up to the
number of cores.

Evidence: the loop waits for workers, the workers compute, and cores are free.

Similar causes: `decode_bound` (there, no core is free) and `latency_bound` (there, workers wait and do not compute).

Remedy: more workers; penstock.Loader chooses their number itself.
"""

from __future__ import annotations

from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.worker_cpu import best_num_workers, waits_for_computing
from penstock.diagnose.suspect import Answer, RuledOut, Suspect
from penstock.model.edits import with_workers

FREE_CORES_MIN = 0.4
"""Free cores: the loop and its threads leave fewer than this idle in any case."""


def check(evidence: Evidence) -> Answer:
    """Suspect it if workers compute, the loop waits, and cores are idle."""
    if not waits_for_computing(evidence):
        return None
    machine, num_workers = evidence.machine, evidence.settings.num_workers
    most = max(num_workers, round(machine.cores))
    best = best_num_workers(evidence, most)
    if machine.free_cores < FREE_CORES_MIN or best <= num_workers:
        return RuledOut(f"{num_workers} workers on {machine.cores:g} cores, of which {machine.free_cores:.1f} are free")
    computing = evidence.workers.share_of_fetch(evidence.workers.cpu_s)
    return Suspect(
        strength=0.9 if machine.system else 0.6,
        summary=f"{num_workers} workers cannot keep up, and {machine.free_cores:.1f} cores are idle",
        evidence=(
            f"a worker computes {computing:.0%} of the time it takes for a batch",
            f"{machine.free_cores:.1f} of {machine.cores:g} usable cores were free",
        ),
        advice=f"num_workers={best}",
        remedy=lambda workload: with_workers(workload, best),
        settings={"num_workers": best},
    )

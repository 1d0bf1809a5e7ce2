"""The workers compute without a break, but some cores have nothing to do.

Each worker is one core at most. While the loop waits and cores are idle, more workers mean more batches, up to the
number of cores (one left for the loop).

Looks like `decode_bound` (but there no core is free) and `latency_bound` (but there workers wait, they do not
compute).

Remedy: more workers; penstock.Loader finds their number by itself.
"""

from __future__ import annotations

from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.worker_cpu import computing
from penstock.diagnose.suspect import Answer, RuledOut, Suspect
from penstock.model.edits import with_workers

FREE = 0.4
"""Cores: less is what a loop and its threads leave idle anyway."""


def check(evidence: Evidence) -> Answer:
    """Workers compute, the loop waits, and cores are idle."""
    if not computing(evidence):
        return None
    most = max(evidence.settings.num_workers, round(evidence.machine.cores))
    if evidence.machine.free_cores < FREE or most == evidence.settings.num_workers:
        return RuledOut(
            f"{evidence.settings.num_workers} workers on {evidence.machine.cores:g} cores, of which {evidence.machine.free_cores:.1f} are free"
        )
    return Suspect(
        strength=0.9 if evidence.machine.system else 0.6,
        summary=f"{evidence.settings.num_workers} workers cannot keep up, and {evidence.machine.free_cores:.1f} cores are idle",
        evidence=(
            f"a worker computes {evidence.workers.share_of_fetch(evidence.workers.cpu_s):.0%} of the time it takes for a batch",
            f"{evidence.machine.free_cores:.1f} of {evidence.machine.cores:g} usable cores were free",
        ),
        advice=f"num_workers={most}",
        remedy=lambda workload: with_workers(workload, most),
    )

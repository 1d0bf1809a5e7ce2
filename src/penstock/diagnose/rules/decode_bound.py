"""All cores are busy decoding, and that is still too slow.

The workers compute the whole time they have, every core that the run may use is in use, and the loop finds nothing
ready. More workers cannot help: there is nobody left to do the work.

Looks like `too_few_workers` (but no core is free), `noisy_neighbour` (but nobody else uses the cores), `cpu_quota`
(but nothing is throttled) and storage causes (but the workers compute, they do not wait).

Remedy: cheaper samples. Decode smaller (DCT scaling), resize once by packing the shards, a faster codec,
augmentations on the GPU; or more cores.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.core.arrays import mean
from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.machine import SPARE_SHARE
from penstock.diagnose.evidence.worker_cpu import FULL, computing, decoding_cores, helped, top_function, used_cores
from penstock.diagnose.suspect import Answer, RuledOut, Suspect
from penstock.model.workload import Workload

THROTTLED = 0.05
COLLATING = 0.5
CROWDED = 0.75
"""Seconds in line for a core, for each second on one."""


def check(evidence: Evidence) -> Answer:
    """Workers compute, cores are full, and it is our own decoding that fills them."""
    if not computing(evidence):
        return None
    if evidence.machine.throttled > THROTTLED:
        return RuledOut(f"the cgroup's quota stopped the run {evidence.machine.throttled:.0%} of the time")
    collating = evidence.workers.share_of_fetch(evidence.workers.collate_s)
    if collating > COLLATING:
        return RuledOut(f"{collating:.0%} of the workers' time goes into collating")
    used = used_cores(evidence)
    full = used >= FULL * evidence.machine.cores
    if not full and not _crowds_the_loop(evidence):
        return RuledOut(f"decoding and the loop use {used:.1f} of {evidence.machine.cores:g} cores")
    per_batch = mean(evidence.workers.cpu_s)
    return Suspect(
        strength=0.6 if not evidence.machine.system else 0.9 if full else 0.55,
        summary=f"Decoding is the bottleneck: it takes {decoding_cores(evidence):.1f} of {evidence.machine.cores:g} cores",
        evidence=(
            f"workers compute {evidence.workers.share_of_fetch(evidence.workers.cpu_s):.0%} of the time they take for a batch "
            f"({format_ms(per_batch)} of CPU each)",
            f"with the loop's own work that is {used:.1f} of {evidence.machine.cores:g} usable cores",
            *top_function(evidence),
        ),
        advice="Make samples cheaper: decode at the size you need, pack the shards, use penstock.Loader; or more cores",
        remedy=lambda workload: _free(workload, evidence.workers.blocked_in("threads") if helped(evidence) else 0.0),
    )


def _crowds_the_loop(evidence: Evidence) -> bool:
    """Whether workers hold every core when the loop wants one, though they leave some idle in between.

    Not where strangers do: then the same work would fit if they were gone.
    """
    strangers = evidence.machine.others_cpu > SPARE_SHARE * evidence.machine.cores
    return (
        evidence.settings.num_workers >= evidence.machine.cores
        and (evidence.machine.queue_per_cpu or 0.0) >= CROWDED
        and not strangers
    )


def _free(workload: Workload, own_threads: float) -> Workload:
    """Decoding for nothing: how far the next limit lets it go. Nor is a part of the waits left, for own threads."""
    return replace(workload, cpu_s=workload.cpu_s * 0, latency_s=workload.latency_s * (1 - own_threads))

"""All cores are busy decoding, and that is still too slow.

More workers cannot help, because no core is left for them.

Evidence: the workers compute nearly all the time, every core that the run may use is in use, and the loop finds no
batch ready.

Similar causes: `too_few_workers` (there, cores are free), `noisy_neighbour` (there, other processes use the cores),
`cpu_quota` (there, the run is throttled) and causes in the storage (there, workers wait and do not compute).

Remedy: cheaper samples. Decode to a smaller size (DCT scaling), resize once by packing the shards, use a faster codec,
or move augmentations to the GPU. Or use more cores.
"""

from __future__ import annotations

from penstock.core.arrays import mean
from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.machine import SPARE_SHARE
from penstock.diagnose.evidence.worker_cpu import (
    CORES_FULL,
    cores_in_use,
    decode_cores,
    has_helper_threads,
    top_function_fact,
    waits_for_computing,
)
from penstock.diagnose.suspect import Answer, RuledOut, Suspect
from penstock.model.workload import Workload

THROTTLED_MAX = 0.05
"""Share of the time: if the run is throttled for longer, the quota is the cause."""
COLLATE_MAX = 0.5
"""Share of the workers' time: if collating takes more, it is the cause."""
LOOP_QUEUE_MIN = 0.75
"""Seconds that the loop waits for a core, for each second on one, from which on workers hold up the loop."""


def check(evidence: Evidence) -> Answer:
    """Suspect it if workers compute, the cores are full, and it is decoding that fills them."""
    if not waits_for_computing(evidence):
        return None
    machine, workers = evidence.machine, evidence.workers
    if machine.throttled > THROTTLED_MAX:
        return RuledOut(f"the cgroup's quota stopped the run {machine.throttled:.0%} of the time")
    collating = workers.share_of_fetch(workers.collate_s)
    if collating > COLLATE_MAX:
        return RuledOut(f"{collating:.0%} of the workers' time goes into collating")
    used = cores_in_use(evidence)
    full = used >= CORES_FULL * machine.cores
    if not full and not _workers_hold_up_the_loop(evidence):
        return RuledOut(f"decoding and the loop use {used:.1f} of {machine.cores:g} cores")
    helper_share = workers.blocked_in("threads") if has_helper_threads(evidence) else 0.0
    return Suspect(
        strength=0.6 if not machine.system else 0.9 if full else 0.55,
        summary=f"Decoding is the bottleneck: it takes {decode_cores(evidence):.1f} of {machine.cores:g} cores",
        evidence=(
            f"workers compute {workers.share_of_fetch(workers.cpu_s):.0%} of the time they take for a batch "
            f"({format_ms(mean(workers.cpu_s))} of CPU each)",
            f"with the loop's own work that is {used:.1f} of {machine.cores:g} usable cores",
            *top_function_fact(evidence),
        ),
        advice="Make samples cheaper: decode at the size you need, pack the shards, use penstock.Loader; or more cores",
        remedy=lambda workload: _without_decoding(workload, helper_share),
    )


def _workers_hold_up_the_loop(evidence: Evidence) -> bool:
    """Return whether workers hold every core when the loop wants one, though some are idle in between.

    This does not apply if other processes use cores: without them the same work might fit.
    """
    machine = evidence.machine
    return (
        evidence.settings.num_workers >= machine.cores
        and (machine.queue_per_cpu or 0.0) >= LOOP_QUEUE_MIN
        and machine.others_cpu <= SPARE_SHARE * machine.cores
    )


def _without_decoding(workload: Workload, helper_share: float) -> Workload:
    """Return the workload with decoding that costs nothing; this share of the waiting was for the workers' own
    threads."""
    return workload.replace(cpu_s=workload.cpu_s * 0, latency_s=workload.latency_s * (1 - helper_share))

"""Python's garbage collector stops the training loop or the workers.

Each full collection visits every object. With millions of small objects (lists of annotations, nested dicts) it takes a
good part of a second, on the loop's own thread. Workers that parse JSON or build lists of objects collect too, and they
visit all objects that they have inherited from the main process.

Evidence: the collector's own clock.

Similar causes: in the loop, any slow steps at random; in workers, `straggler_samples` (there, the collector takes no
time).

Remedy: `gc.freeze()` after set-up, for workers in `worker_init_fn`; arrays instead of lists of objects; or
`gc.disable()` and a collection at the end of each epoch.
"""

from __future__ import annotations

import numpy as np

from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.worker_cpu import waits_for_workers
from penstock.diagnose.suspect import Answer, Suspect

GC_SHARE_MIN = 0.03
"""Share of the steady time, or of the workers' time, in the collector."""
GC_SHARE_MAX = 0.95
"""Largest share of the steady time that is taken for collections: keeps the gain finite."""
CPU_QUANTILE = 0.95
"""Quantile of the batches' CPU time without collections, which is the most that a batch needs."""


def check(evidence: Evidence) -> Answer:
    """Suspect it if collections take a noticeable share of the loop's time, or of workers that the loop waits for."""
    loop = evidence.loop
    begin, end = (loop.steps[0].at_s, loop.steps[-1].at_s) if loop.steps else (0.0, 0.0)
    events = (event for event in evidence.recording.events if event.what == "gc")
    pauses = [event.seconds for event in events if begin <= event.at_s <= end]
    lost_s = max(sum(pauses), float(loop.phase_s("gc").sum()))
    if loop.steady_s <= 0 or lost_s < GC_SHARE_MIN * loop.steady_s:
        return _check_workers(evidence)
    share = min(GC_SHARE_MAX, lost_s / loop.steady_s)
    return Suspect(
        strength=0.9,
        summary=f"Garbage collection takes {share:.0%} of the time",
        evidence=(f"{format_ms(lost_s)} in the collector" + (f", {len(pauses)} collections" if pauses else ""),),
        advice="gc.freeze() after set-up; fewer small objects; collect at the end of an epoch",
        saved_s=loop.saving(share * loop.cycle_s),
    )


def _check_workers(evidence: Evidence) -> Answer:
    workers = evidence.workers
    share = workers.share_of_fetch(workers.gc_s)
    if not waits_for_workers(evidence) or share < GC_SHARE_MIN:
        return None
    collecting = workers.gc_s > 0
    cpu_s = float(np.quantile(workers.cpu_s - workers.gc_s, CPU_QUANTILE))
    return Suspect(
        strength=0.9,
        summary=f"Garbage collection takes {share:.0%} of the workers' time",
        evidence=(
            f"{int(collecting.sum())} of {len(workers.fetches)} batches were delayed by a full collection in their "
            f"worker, for {format_ms(float(np.median(workers.gc_s[collecting])))}",
        ),
        advice="gc.freeze() in worker_init_fn; fewer small objects per sample",
        remedy=lambda workload: workload.replace(
            cpu_s=np.minimum(workload.cpu_s, cpu_s), receive_s=np.full(1, evidence.ipc.undisturbed_receive_cpu_s)
        ),
    )

"""Python's garbage collector stops the training loop, or the workers.

Each full collection walks every object there is: with millions of small ones (lists of annotations, nested dicts)
that takes a good part of a second, on the loop's own thread. Workers that parse JSON or build lists of objects collect
too, and what they walk is all that they have inherited from the main process.

Looks like random slow steps, in workers like `straggler_samples`; the collector's own clock tells it apart.

Remedy: `gc.freeze()` after set-up, for workers in `worker_init_fn`; arrays instead of lists of objects; `gc.disable()`
and a collect at the epoch's end.
"""

from __future__ import annotations

import numpy as np

from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.worker_cpu import behind
from penstock.diagnose.suspect import Answer, Suspect

LEAST = 0.03
"""Share of the steady time, or of the workers'."""
USUAL = 0.95
"""Of the batches: what they compute beside collections is no more than this quantile of it."""


def check(evidence: Evidence) -> Answer:
    """Collections take a noticeable share of the loop's time, or of workers that it waits for."""
    begin, end = (evidence.loop.steps[0].at_s, evidence.loop.steps[-1].at_s) if evidence.loop.steps else (0.0, 0.0)
    events = (event for event in evidence.recording.events if event.what == "gc")
    pauses = [event.seconds for event in events if begin <= event.at_s <= end]
    lost = max(sum(pauses), float(evidence.loop.phase_s("gc").sum()))
    if evidence.loop.steady_s <= 0 or lost < LEAST * evidence.loop.steady_s:
        return _in_workers(evidence)
    share = min(0.95, lost / evidence.loop.steady_s)
    return Suspect(
        strength=0.9,
        summary=f"Garbage collection takes {share:.0%} of the time",
        evidence=(f"{format_ms(lost)} in the collector" + (f", {len(pauses)} collections" if pauses else ""),),
        advice="gc.freeze() after set-up; fewer small objects; collect at the end of an epoch",
        gain=evidence.loop.gain_without(share * evidence.loop.cycle_s),
    )


def _in_workers(evidence: Evidence) -> Answer:
    share = evidence.workers.share_of_fetch(evidence.workers.gc_s)
    if not behind(evidence) or share < LEAST:
        return None
    collecting = evidence.workers.gc_s > 0
    most_s = float(np.quantile(evidence.workers.cpu_s - evidence.workers.gc_s, USUAL))
    return Suspect(
        strength=0.9,
        summary=f"Garbage collection takes {share:.0%} of the workers' time",
        evidence=(
            f"{int(collecting.sum())} of {len(evidence.workers.fetches)} batches were held up by a full collection in their "
            f"worker, for {format_ms(float(np.median(evidence.workers.gc_s[collecting])))}",
        ),
        advice="gc.freeze() in worker_init_fn; fewer small objects per sample",
        remedy=lambda workload: workload.replace(
            cpu_s=np.minimum(workload.cpu_s, most_s), receive_s=np.full(1, evidence.ipc.undisturbed_receive_cpu_s)
        ),
    )

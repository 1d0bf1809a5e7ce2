"""One worker is slower than the others, and in-order delivery makes all others wait for it.

torch assigns batch i to worker i mod W and delivers strictly in order. When the batch of the slow worker is due, the
batches of all others are ready and may not be delivered. The step times are exactly those of a full disk: every
W-th step is slow.

Evidence: at the slow steps nearly all batches are ready (as many as may be prefetched), and the awaited worker is
always the same.

Similar causes: `storage_bandwidth` and `decode_bound` (there, no batch is ready at a slow step) and `straggler_samples`
(there, slow batches come from all workers alike).

Remedy: find what is special about that worker (its shard, its mount, its core); `in_order=False`; or penstock.Loader,
where a batch does not belong to one worker.
"""

from __future__ import annotations

import numpy as np

from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.worker_cpu import waits_for_workers
from penstock.diagnose.suspect import Answer, RuledOut, Suspect
from penstock.model.edits import without_lag

LAG_FACTOR = 1.5
"""A worker lags if three quarters of its batches take this multiple of the others' median."""
BATCHES_MIN = 3
"""Fewer batches of a worker do not show whether it lags."""
AWAITED_MIN = 0.5
"""Share of the waiting for this worker from which on the cause is certain."""


def check(evidence: Evidence) -> Answer:
    """Suspect it if nearly all batches of one worker take longer, and the loop waits for that worker."""
    workers = evidence.workers
    if not waits_for_workers(evidence) or evidence.settings.num_workers < 2:
        return None
    own_s = np.maximum(workers.fetch_s - workers.queue_s, 0.0)  # a worker that waits for a core is not slow itself
    times = {int(number): own_s[workers.batch_worker == number] for number in np.unique(workers.batch_worker)}
    times = {number: seconds for number, seconds in times.items() if len(seconds) >= BATCHES_MIN}
    if len(times) < 2:
        return None
    slowest = max(times, key=lambda number: float(np.median(times[number])))
    others_s = float(np.median(np.concatenate([seconds for number, seconds in times.items() if number != slowest])))
    median_s, quick_s = float(np.median(times[slowest])), float(np.quantile(times[slowest], 0.25))
    if quick_s < LAG_FACTOR * others_s:
        return RuledOut(
            f"no worker lags: the slowest takes {format_ms(median_s)} for a batch, the others {format_ms(others_s)}"
        )
    share = _awaited_share(evidence, slowest)
    return Suspect(
        strength=0.95 if share >= AWAITED_MIN else 0.55,
        summary=f"Worker {slowest} lags, and delivery in order makes all others wait for it",
        evidence=(
            f"worker {slowest} takes {format_ms(median_s)} for a batch, the others {format_ms(others_s)}",
            f"{share:.0%} of the waiting was for worker {slowest}",
            *_ready_fact(evidence, slowest),
        ),
        advice="Find what is special about its data or core; in_order=False, or penstock.Loader, removes the stall",
        remedy=lambda workload: without_lag(workload, slowest),
    )


def _awaited_share(evidence: Evidence, worker: int) -> float:
    """Return the share of the waiting that was for this worker."""
    loop = evidence.loop
    waited_s = float(loop.wait_s[loop.awaited_worker >= 0].sum())
    return float(loop.wait_s[loop.awaited_worker == worker].sum()) / waited_s if waited_s > 0 else 0.0


def _ready_fact(evidence: Evidence, worker: int) -> tuple[str, ...]:
    loop, settings = evidence.loop, evidence.settings
    stalls = (loop.awaited_worker == worker) & (loop.ready_batches >= 0) & loop.slow
    if not stalls.any():
        return ()
    most = (settings.num_workers - 1) * settings.prefetch_factor
    ready = np.median(loop.ready_batches[stalls])
    return (f"{ready:.0f} batches of at most {most} of the other workers were ready at its stalls",)

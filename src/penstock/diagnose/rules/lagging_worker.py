"""One worker is slower than the rest, and everybody waits for its turn.

torch hands batch i to worker i mod W and yields strictly in order: when the slow one's turn comes, the batches of
all others lie ready and may not be taken. The trace looks exactly like a full disk: every W-th step is slow. What
tells it apart is how many batches are ready at the stall (nearly all that may be) and who is awaited (always the
same).

Looks like `storage_bandwidth` and `decode_bound` (but then nothing is ready at the stall) and `straggler_samples`
(but those come to all workers alike).

Remedy: find what is special about that worker (its shard, its mount, its core); `in_order=False`; or
penstock.Loader, where no worker owns a batch.
"""

from __future__ import annotations

import numpy as np

from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.worker_cpu import behind
from penstock.diagnose.suspect import Answer, RuledOut, Suspect
from penstock.model.edits import without_lag

TIMES = 1.5
"""So many times slower than the others' median, at three quarters of its batches."""
ENOUGH = 3
"""Batches per worker: fewer say nothing about it."""
ITS_SHARE = 0.5
"""Of the waiting must be for it."""


def check(evidence: Evidence) -> Answer:
    """One worker's batches take longer, nearly all of them, and the loop waits for that worker."""
    if not behind(evidence) or evidence.settings.num_workers < 2:
        return None
    own_s = np.maximum(
        evidence.workers.fetch_s - evidence.workers.queue_s, 0.0
    )  # who stands in line for a core is not slow himself
    times = {int(w): own_s[evidence.workers.batch_worker == w] for w in np.unique(evidence.workers.batch_worker)}
    times = {worker: seconds for worker, seconds in times.items() if len(seconds) >= ENOUGH}
    if len(times) < 2:
        return None
    worst = max(times, key=lambda worker: float(np.median(times[worker])))
    others = float(np.median(np.concatenate([s for worker, s in times.items() if worker != worst])))
    usual, quick = float(np.median(times[worst])), float(np.quantile(times[worst], 0.25))
    if quick < TIMES * others:
        return RuledOut(
            f"no worker lags: the slowest takes {format_ms(usual)} for a batch, the others {format_ms(others)}"
        )
    share = _waited_for(evidence, worst)
    return Suspect(
        strength=0.95 if share >= ITS_SHARE else 0.55,
        summary=f"Worker {worst} lags, and all others wait for its turn",
        evidence=(
            f"worker {worst} takes {format_ms(usual)} for a batch, the others {format_ms(others)}",
            f"{share:.0%} of the waiting was for worker {worst}",
            *_ready_then(evidence, worst),
        ),
        advice="See what is special about its data or core; in_order=False, or penstock.Loader, takes the stall away",
        remedy=lambda workload: without_lag(workload, worst),
    )


def _waited_for(evidence: Evidence, worker: int) -> float:
    known = evidence.loop.awaited_worker >= 0
    waited = float(evidence.loop.wait_s[known].sum())
    return float(evidence.loop.wait_s[evidence.loop.awaited_worker == worker].sum()) / waited if waited > 0 else 0.0


def _ready_then(evidence: Evidence, worker: int) -> tuple[str, ...]:
    mine = (evidence.loop.awaited_worker == worker) & (evidence.loop.ready_batches >= 0) & evidence.loop.slow
    if not mine.any():
        return ()
    most = (evidence.settings.num_workers - 1) * evidence.settings.prefetch_factor
    return (
        f"{np.median(evidence.loop.ready_batches[mine]):.0f} batches of at most {most} of the others lay ready at its stalls",
    )

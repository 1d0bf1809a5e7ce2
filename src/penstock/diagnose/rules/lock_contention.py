"""Workers wait for a lock that only one of them can hold.

The lock may be a `multiprocessing.Lock` around a shared file, a database connection, or a file lock of a cache. However
many workers there are, the part under the lock is done by one at a time.

Evidence: stack samples of the workers in locks.

Similar causes: `latency_bound` and causes in the storage (workers wait there too while cores are free, but not in a
lock).

Remedy: a handle per worker instead of a shared one; hold the lock for the shared state only, not for reading or
decoding.
"""

from __future__ import annotations

from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.worker_cpu import top_function_fact, waits_for_workers
from penstock.diagnose.suspect import Answer, RuledOut, Suspect

LOCK_SHARE_MIN = 0.15
"""Share of the workers' time in a lock."""
HELPER_SHARE_MIN = 0.5
"""Cores of a worker's other threads over that share, from which on the worker waits for these threads instead."""


def check(evidence: Evidence) -> Answer:
    """Suspect it if workers were sampled waiting in locks while they made batches."""
    if not waits_for_workers(evidence) or evidence.settings.num_workers < 2:
        return None
    workers, helper_cores = evidence.workers, evidence.machine.helper_threads_cpu
    share = workers.states.get("lock", 0.0)
    if share < LOCK_SHARE_MIN:
        return RuledOut(f"workers were in a lock in {share:.0%} of the stack samples") if workers.states else None
    if helper_cores >= HELPER_SHARE_MIN * share:
        return RuledOut(f"workers wait for threads of their own, which compute ({helper_cores:.2f} cores each)")
    locked = workers.blocked_in("lock")
    return Suspect(
        strength=0.9,
        summary=f"Workers wait for a lock {share:.0%} of the time",
        evidence=(
            f"in {share:.0%} of their stack samples workers waited for a lock "
            f"(about {format_ms(share * workers.mean_fetch_s)} per batch)",
            *top_function_fact(evidence),
        ),
        advice="Give each worker its own handle, or hold the lock for less",
        remedy=lambda workload: workload.replace(latency_s=workload.latency_s * (1 - locked)),
    )

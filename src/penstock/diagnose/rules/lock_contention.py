"""Workers wait for a lock that only one of them can hold.

A `multiprocessing.Lock` around a shared file, a database connection, a file lock in a cache: however many workers
there are, the part under the lock runs one at a time.

Looks like `latency_bound` and storage causes: workers wait, cores are free; but they wait in a lock.

Remedy: a handle per worker instead of a shared one; hold the lock for the shared state only, not for reading or
decoding.
"""

from __future__ import annotations

from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.worker_cpu import behind, top_function
from penstock.diagnose.suspect import Answer, RuledOut, Suspect

LEAST = 0.15
"""Share of the workers' time in a lock."""
OWN_THREADS = 0.5
"""Of that time: a worker whose other threads compute so much of it waits for them, not for other workers."""


def check(evidence: Evidence) -> Answer:
    """Workers were seen waiting in locks while they made batches."""
    if not behind(evidence) or evidence.settings.num_workers < 2:
        return None
    share = evidence.workers.states.get("lock", 0.0)
    if share < LEAST:
        return RuledOut(f"workers were in a lock in {share:.0%} of the looks") if evidence.workers.states else None
    if evidence.machine.helper_threads_cpu >= OWN_THREADS * share:
        return RuledOut(
            f"workers wait for threads of their own, which compute ({evidence.machine.helper_threads_cpu:.2f} cores each)"
        )
    locked = evidence.workers.blocked_in("lock")
    return Suspect(
        strength=0.9,
        summary=f"Workers wait for a lock {share:.0%} of the time",
        evidence=(
            f"in {share:.0%} of the looks at the workers they stood in a lock "
            f"(about {format_ms(share * evidence.workers.mean_fetch_s)} per batch)",
            *top_function(evidence),
        ),
        advice="Give each worker its own handle, or hold the lock for less",
        remedy=lambda workload: workload.replace(latency_s=workload.latency_s * (1 - locked)),
    )

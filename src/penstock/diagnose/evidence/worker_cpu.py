"""What the rules about cores have in common."""

from __future__ import annotations

from penstock.diagnose.evidence.evidence import Evidence
from penstock.model.edits import with_workers

FULL = 0.85
"""Of the cores: beyond this they are in use as far as that goes in practice."""
BEHIND = 0.05
"""Share of the time: a loop that waits less has no supply problem."""
COMPUTING = 0.6
"""Share of a worker's own time, waiting for a core left out: beyond it, computing is what it does."""
HELPING = 0.2
"""Cores for each worker, and share of its thread's time."""


def behind(evidence: Evidence) -> bool:
    """Whether the loop waits for workers."""
    return evidence.settings.num_workers > 0 and len(evidence.workers.fetches) > 0 and evidence.starved_share >= BEHIND


def computing(evidence: Evidence) -> bool:
    """Whether the loop waits for workers who compute."""
    if not behind(evidence):
        return False
    if helped(evidence):  # its thread waits for others, and whether those have a core is not known: are all in use?
        return used_cores(evidence) >= FULL * evidence.machine.cores
    own = float((evidence.workers.cpu_s + evidence.workers.blocked_s).sum())
    return own > 0 and float(evidence.workers.cpu_s.sum()) / own >= COMPUTING


def helped(evidence: Evidence) -> bool:
    """Whether threads that a worker has started compute, and its own waits for them; spinning threads crowd instead."""
    return evidence.machine.helper_threads_cpu >= HELPING and evidence.workers.states.get("threads", 0.0) >= HELPING


def decoding_cores(evidence: Evidence) -> float:
    """Cores that making batches keeps busy."""
    return evidence.machine.workers_cpu if helped(evidence) else evidence.workers.fetch_cores


def used_cores(evidence: Evidence) -> float:
    """With the loop's own work."""
    return decoding_cores(evidence) + evidence.contention.step_cpu * (1 - evidence.loop.wait_share)


def best_workers(evidence: Evidence, most: int) -> int:
    """The fewest within 3% of the best rate that the model sees with up to so many; the most, where it sees nothing."""
    workload = evidence.workload
    if workload is None:
        return most
    rates = {count: with_workers(workload, count).steady_rate for count in range(1, most + 1)}
    return min(count for count, rate in rates.items() if rate >= 0.97 * max(rates.values()))


def top_function(evidence: Evidence) -> tuple[str, ...]:
    """Where workers are most of the time, if anybody looked."""
    for name, share in evidence.workers.functions.items():
        return (f"most often seen in {name} ({share:.0%} of the looks)",)
    return ()

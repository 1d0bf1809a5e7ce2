"""Whether the training loop waits for workers that compute, and how many cores that takes; shared by the rules on
cores."""

from __future__ import annotations

from penstock.diagnose.evidence.evidence import Evidence
from penstock.model.edits import with_workers

CORES_FULL = 0.85
"""Share of the cores in use from which on they count as full: more is hardly reached in practice."""
STARVED_MIN = 0.05
"""Share of the time: a loop that waits less for batches that are not ready is fed fast enough."""
COMPUTING_MIN = 0.6
"""Share of a worker's time, without waiting for a core, from which on computing limits the worker."""
HELPER_MIN = 0.2
"""Cores that a worker's other threads use, and share of its time that it waits for them."""
NEAR_BEST = 0.97
"""Share of the best simulated rate that counts as the best rate."""


def waits_for_workers(evidence: Evidence) -> bool:
    """Return whether the loop waits for workers."""
    workers = evidence.workers
    return evidence.settings.num_workers > 0 and len(workers.fetches) > 0 and evidence.starved_share >= STARVED_MIN


def waits_for_computing(evidence: Evidence) -> bool:
    """Return whether the loop waits for workers that compute."""
    if not waits_for_workers(evidence):
        return False
    if has_helper_threads(evidence):
        # The worker's thread waits for its helper threads. Whether those have a core is unknown, but all cores may be
        # used.
        return cores_in_use(evidence) >= CORES_FULL * evidence.machine.cores
    own_s = float((evidence.workers.cpu_s + evidence.workers.blocked_s).sum())
    return own_s > 0 and float(evidence.workers.cpu_s.sum()) / own_s >= COMPUTING_MIN


def has_helper_threads(evidence: Evidence) -> bool:
    """Return whether each worker has threads that compute while its own thread waits for them.

    Threads that spin do not count: they take cores without doing the work.
    """
    waits = evidence.workers.states.get("threads", 0.0) >= HELPER_MIN
    return evidence.machine.helper_threads_cpu >= HELPER_MIN and waits


def decode_cores(evidence: Evidence) -> float:
    """Return the number of cores that making batches keeps busy."""
    return evidence.machine.workers_cpu if has_helper_threads(evidence) else evidence.workers.fetch_cores


def cores_in_use(evidence: Evidence) -> float:
    """Return the number of cores that making batches keeps busy while the loop waits, and its own work if it has some.

    It is no more than processes outside the run leave.
    """
    loop_cpu = evidence.contention.step_cpu * (1 - evidence.loop.wait_share)
    return min(evidence.machine.cores - evidence.machine.others_cpu, decode_cores(evidence) + loop_cpu)


def best_num_workers(evidence: Evidence, workers_max: int) -> int:
    """Return the smallest number of workers whose simulated rate is near the best one with up to `workers_max`.

    Without a workload to simulate it is `workers_max`.
    """
    workload = evidence.workload
    if workload is None:
        return workers_max
    rates = {count: with_workers(workload, count).steady_rate for count in range(1, workers_max + 1)}
    return min(count for count, rate in rates.items() if rate >= NEAR_BEST * max(rates.values()))


def top_function_fact(evidence: Evidence) -> tuple[str, ...]:
    """Return a fact about the function that workers were sampled in most often, if there are stack samples."""
    for name, share in evidence.workers.functions.items():
        return (f"most often sampled in {name} ({share:.0%} of the stack samples)",)
    return ()

"""Batches that take far longer than most: how many, from which workers, and whether they compute or wait."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.core.types import Bools
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.worker_cpu import waits_for_workers

SLOW_MEDIANS = 3.0
"""A batch is slow if it takes more than this multiple of the median."""
SLOW_SHARE_MAX = 0.4
"""Largest share of slow batches: with more, the median is not a typical batch."""
EXCESS_SHARE_MIN = 0.15
"""Share of the workers' time that the excess of the slow batches takes at least, for the slow batches to matter."""
WORKER_DEVIATIONS = 3.0
"""If a worker has more slow batches than this many standard deviations above its expected number, the worker is
slow."""
STRETCH_BATCHES_MIN = 20
"""If there are fewer slow batches, it is unknown whether they all lie in one stretch of the run."""
STRETCH_DENSITY = 1.2
"""Slow batches lie in one stretch if it holds fewer than this number of batches for each slow one."""


@dataclass(frozen=True)
class SlowBatches:
    """The slow batches of a run."""

    slow: Bools
    """Whether each batch is slow."""
    count: int
    share: float
    """Share of the batches that are slow."""
    factor: float
    """Time of the quickest slow batch over the median."""
    workers: int
    """Number of workers that made slow batches."""
    computing: bool
    """Whether the additional time is computing."""


def find_slow_batches(evidence: Evidence) -> SlowBatches | None:
    """Return the slow batches, if the loop waits and they are neither one worker's nor one stretch of the run."""
    if not waits_for_workers(evidence):
        return None
    workers, num_workers = evidence.workers, evidence.settings.num_workers
    typical_s = float(np.median(workers.fetch_s))
    if typical_s <= 0:
        return None
    slow = workers.fetch_s - workers.queue_s - workers.gc_s > SLOW_MEDIANS * typical_s
    excess_s = float((workers.fetch_s[slow] - typical_s).sum())
    if not slow.any() or slow.mean() > SLOW_SHARE_MAX or excess_s < EXCESS_SHARE_MIN * float(workers.fetch_s.sum()):
        return None
    if _in_one_stretch(slow):
        return None
    counts = np.unique(workers.batch_worker[slow], return_counts=True)[1]
    if num_workers > 1 and counts.max() > _count_by_chance(int(counts.sum()), num_workers):
        return None
    more_cpu_s = float(workers.cpu_s[slow].mean() - workers.cpu_s[~slow].mean())
    more_blocked_s = float(workers.blocked_s[slow].mean() - workers.blocked_s[~slow].mean())
    more_s = float(workers.fetch_s[slow].mean() - workers.fetch_s[~slow].mean())
    if max(more_cpu_s, more_blocked_s) < more_s / 2:
        return None  # their workers waited for a core: neither the samples nor the storage caused that
    return SlowBatches(
        slow=slow,
        count=int(slow.sum()),
        share=float(slow.mean()),
        factor=float(workers.fetch_s[slow].min()) / typical_s,
        workers=len(counts),
        computing=more_cpu_s > more_blocked_s,
    )


def _in_one_stretch(slow: Bools) -> bool:
    """Return whether nearly all slow batches lie side by side: then the whole run was slow for a while."""
    first, last = np.quantile(np.flatnonzero(slow), (0.05, 0.95))
    return int(slow.sum()) >= STRETCH_BATCHES_MIN and last - first < STRETCH_DENSITY * slow.sum()


def _count_by_chance(count: int, workers: int) -> float:
    """Return the largest number of `count` slow batches that one worker gets by chance, if all workers are alike."""
    share = 1 / workers
    return float(count * share + WORKER_DEVIATIONS * (count * share * (1 - share)) ** 0.5)

"""Batches that take far longer than most: how many, whose, and whether they compute or wait."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.worker_cpu import behind

TIMES = 3.0
"""The median batch, so many times over, is a straggler."""
MOST = 0.4
"""Of all batches: with more, a batch of the median is no usual one."""
ITS_SHARE = 0.15
"""Of the workers' time that the excess of the tail must make up to matter."""
SPREAD = 3.0
"""Standard deviations: a worker that has more of them than chance would give it is what is slow, not the samples."""
FEW = 20
"""Slow batches: of fewer it cannot be told whether they come one by one."""
TOGETHER = 1.2
"""Batches from the first to the last, for each slow one."""


@dataclass(frozen=True)
class SlowBatchTail:
    """The slow batches of a run."""

    which: NDArray[np.bool_]
    count: int
    share: float
    """Of the batches."""
    times: float
    """The least slow of them, in medians."""
    workers: int
    """That they come from."""
    computing: bool
    """Whether what they take longer is computing."""


def heavy(evidence: Evidence) -> SlowBatchTail | None:
    """The tail, if the loop waits, there is one, and it is not one worker's."""
    if not behind(evidence):
        return None
    usual = float(np.median(evidence.workers.fetch_s))
    if usual <= 0:
        return None
    which = evidence.workers.fetch_s - evidence.workers.queue_s - evidence.workers.gc_s > TIMES * usual
    excess = float((evidence.workers.fetch_s[which] - usual).sum())
    if not which.any() or which.mean() > MOST or excess < ITS_SHARE * float(evidence.workers.fetch_s.sum()):
        return None
    if _one_stretch(which):
        return None
    counts = np.unique(evidence.workers.batch_worker[which], return_counts=True)[1]
    if evidence.settings.num_workers > 1 and counts.max() > _by_chance(
        int(counts.sum()), evidence.settings.num_workers
    ):
        return None
    more_cpu = float(evidence.workers.cpu_s[which].mean() - evidence.workers.cpu_s[~which].mean())
    more_blocked = float(evidence.workers.blocked_s[which].mean() - evidence.workers.blocked_s[~which].mean())
    more = float(evidence.workers.fetch_s[which].mean() - evidence.workers.fetch_s[~which].mean())
    if max(more_cpu, more_blocked) < more / 2:  # they stood in line for a core: no fault of the sample or the storage
        return None
    return SlowBatchTail(
        which=which,
        count=int(which.sum()),
        share=float(which.mean()),
        times=float(evidence.workers.fetch_s[which].min()) / usual,
        workers=len(counts),
        computing=more_cpu > more_blocked,
    )


def _one_stretch(which: NDArray[np.bool_]) -> bool:
    """Whether nearly all lie side by side: then the run was slow for a while, and no batch slower than its time."""
    first, last = np.quantile(np.flatnonzero(which), (0.05, 0.95))
    return int(which.sum()) >= FEW and last - first < TOGETHER * which.sum()


def _by_chance(count: int, workers: int) -> float:
    """Of so many, the most that come to one worker if they come to all alike."""
    share = 1 / workers
    return float(count * share + SPREAD * (count * share * (1 - share)) ** 0.5)

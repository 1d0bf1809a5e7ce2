"""Some workers have more to do than others, and some nothing.

An IterableDataset that splits shards over workers gives each a fixed share: with fewer shards than workers some are
idle from the start, with uneven shards some end early, and the rest of the epoch runs on the few that are left.

Looks like `too_few_workers` towards the end of each epoch; counting batches per worker tells it apart.

Remedy: many more shards than workers, of about one size; penstock.Loader or ShardStream, where no worker owns a
shard.
"""

from __future__ import annotations

import numpy as np

from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.worker_cpu import behind
from penstock.diagnose.suspect import Answer, RuledOut, Suspect
from penstock.model.edits import with_workers

EVEN = 1.3
"""The busiest worker's batches over the mean: less is chance."""


def check(evidence: Evidence) -> Answer:
    """Batches per worker differ, in a dataset that deals them out itself."""
    if not behind(evidence) or evidence.settings.num_workers < 2 or evidence.loader.dataset_size is not None:
        return None
    known = evidence.workers.batch_worker[
        (evidence.workers.batch_worker >= 0) & (evidence.workers.batch_worker < evidence.settings.num_workers)
    ]
    counts = np.bincount(known, minlength=evidence.settings.num_workers)
    uneven = float(counts.max() / counts.mean()) if counts.sum() else 1.0
    if uneven < EVEN:
        return RuledOut(f"all {evidence.settings.num_workers} workers made about as many batches")
    idle = int((counts == 0).sum())
    return Suspect(
        strength=0.9,
        summary=f"Work is dealt unevenly: {_who(idle, counts)}",
        evidence=(
            "batches per worker: " + ", ".join(str(count) for count in counts),
            f"the busiest has {uneven:.1f} times the mean",
        ),
        advice="More shards than workers, of about one size; or penstock.Loader, where no worker owns a shard",
        remedy=lambda workload: with_workers(workload, evidence.settings.num_workers),
    )


def _who(idle: int, counts: np.ndarray[tuple[int], np.dtype[np.int64]]) -> str:
    if idle:
        return f"{idle} of {len(counts)} workers had nothing to do"
    return f"one worker made {counts.max()} batches, another {counts.min()}"

"""Some workers have more to do than others, and some may have nothing to do.

An IterableDataset that divides shards between the workers gives each a fixed share. With fewer shards than workers,
some workers are idle from the start. With uneven shards, some end early, and the rest of the epoch depends on the few
that remain.

Evidence: the number of batches that each worker made.

Similar causes: `too_few_workers` (there, all workers make about as many batches).

Remedy: many more shards than workers, of about the same size; or penstock.Loader or ShardStream, where a shard does not
belong to one worker.
"""

from __future__ import annotations

import numpy as np

from penstock.core.types import Ints
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.worker_cpu import waits_for_workers
from penstock.diagnose.suspect import Answer, RuledOut, Suspect
from penstock.model.edits import with_workers

UNEVEN_MIN = 1.3
"""Batches of the busiest worker over the mean: less may be chance."""


def check(evidence: Evidence) -> Answer:
    """Suspect it if workers made different numbers of batches of a dataset that divides them itself."""
    num_workers = evidence.settings.num_workers
    if not waits_for_workers(evidence) or num_workers < 2 or evidence.loader.dataset_size is not None:
        return None
    worker = evidence.workers.batch_worker
    counts = np.bincount(worker[(worker >= 0) & (worker < num_workers)], minlength=num_workers)
    uneven = float(counts.max() / counts.mean()) if counts.sum() else 1.0
    if uneven < UNEVEN_MIN:
        return RuledOut(f"all {num_workers} workers made about as many batches")
    return Suspect(
        strength=0.9,
        summary=f"Work is divided unevenly: {_extremes(counts)}",
        evidence=(
            "batches per worker: " + ", ".join(str(count) for count in counts),
            f"the busiest has {uneven:.1f} times the mean",
        ),
        advice="More shards than workers, of about the same size; "
        "or penstock.Loader, which does not bind shards to workers",
        remedy=lambda workload: with_workers(workload, num_workers),
    )


def _extremes(counts: Ints) -> str:
    idle = int((counts == 0).sum())
    if idle:
        return f"{idle} of {len(counts)} workers had nothing to do"
    return f"one worker made {counts.max()} batches, another {counts.min()}"

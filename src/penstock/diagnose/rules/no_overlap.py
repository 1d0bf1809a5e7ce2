"""The main process makes every batch itself, while the step waits.

With `num_workers=0` loading and computing take turns: each step costs the sum of both. One worker already hides the
smaller of the two behind the larger.

Looks like `decode_bound`, but there the workers are busy all the time; here there are none.

Remedy: `num_workers` of at least one; more while the workers, not the step, set the pace.
"""

from __future__ import annotations

import numpy as np

from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.ipc import RECEIVE_MIN_S
from penstock.diagnose.evidence.worker_cpu import best_workers
from penstock.diagnose.suspect import Answer, Suspect
from penstock.model.edits import with_workers

LEAST_SHARE = 0.03


def check(evidence: Evidence) -> Answer:
    """Nobody but the main process made batches, and it took a noticeable share of the time."""
    if evidence.settings.num_workers > 0 or evidence.loader.type != "torch" or evidence.loop.wait_share < LEAST_SHARE:
        return None
    workers = best_workers(evidence, max(1, round(evidence.machine.cores)))
    return Suspect(
        strength=0.95,
        summary="Loading and computing take turns: there are no workers",
        evidence=(
            "num_workers is 0",
            f"a batch takes {format_ms(evidence.loop.cycle_s * evidence.loop.wait_share)}, the step "
            f"{format_ms(evidence.loop.cycle_s * (1 - evidence.loop.wait_share))}: each waits for the other",
        ),
        advice=f"num_workers={workers} (with persistent_workers=True)",
        remedy=lambda workload: with_workers(workload, workers).replace(receive_s=np.full(1, RECEIVE_MIN_S)),
    )

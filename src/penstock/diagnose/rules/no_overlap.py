"""The main process makes every batch itself, while the step waits.

With `num_workers=0` loading and computing alternate, so each step costs the sum of both. One worker already hides the
shorter of the two behind the longer.

Evidence: `num_workers` is 0, and making batches takes a noticeable share of the time.

Similar causes: `decode_bound` (there, workers are busy all the time).

Remedy: `num_workers` of at least 1, and more as long as the workers limit the rate and not the step.
"""

from __future__ import annotations

import numpy as np

from penstock.core.arrays import mean
from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.ipc import RECEIVE_MIN_S
from penstock.diagnose.evidence.worker_cpu import best_num_workers
from penstock.diagnose.suspect import Answer, Suspect
from penstock.model.edits import overlap_with_workers

WAIT_SHARE_MIN = 0.03
"""Share of the time in the loader."""


def check(evidence: Evidence) -> Answer:
    """Suspect it if there are no workers, and making batches takes a noticeable share of the time."""
    loop = evidence.loop
    if evidence.settings.num_workers > 0 or loop.wait_share < WAIT_SHARE_MIN:
        return None
    if evidence.loader.type == "function":
        return _of_function(evidence)
    if evidence.loader.type != "torch":
        return None
    workers = best_num_workers(evidence, max(1, round(evidence.machine.cores)))
    return Suspect(
        strength=0.95,
        summary="Loading and computing alternate: there are no workers",
        evidence=(
            "num_workers is 0",
            f"a batch takes {format_ms(loop.cycle_s * loop.wait_share)}, the step "
            f"{format_ms(loop.cycle_s * (1 - loop.wait_share))}: each waits for the other",
        ),
        settings={"num_workers": workers},
        advice=f"num_workers={workers} (with persistent_workers=True)",
        remedy=lambda workload: overlap_with_workers(workload, workers).replace(receive_s=np.full(1, RECEIVE_MIN_S)),
    )


def _of_function(evidence: Evidence) -> Suspect:
    """Describe a script that draws its batches by a function between its steps."""
    loop = evidence.loop
    wait_s, step_s = mean(loop.wait_s), mean(loop.busy_s)
    return Suspect(
        strength=0.9,
        summary="Loading and computing alternate: a function makes each batch in the loop's own thread",
        evidence=(f"a call takes {format_ms(wait_s)}, the step {format_ms(step_s)}: each waits for the other",),
        advice="Make the next batch while the step runs: on a thread, or with penstock.Loader or a DataLoader",
        gain=loop.cycle_s / max(step_s, wait_s) - 1,
        gain_of_loading=True,
    )

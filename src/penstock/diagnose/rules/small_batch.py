"""The device could take more at a time: samples per second still rise with the batch size.

A step has a fixed part (launching kernels, the optimizer, Python) that a larger batch shares out over more samples.
It can only be seen where a run has batches of several sizes; with one size it takes an experiment.

Remedy: a larger batch, with the learning rate adapted; or the same effective batch without accumulation.
"""

from __future__ import annotations

import numpy as np

from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.suspect import Answer, Suspect

ENOUGH = 8
"""Steps of each size."""
LEAST = 0.2
"""More samples per second at the largest size than at the usual one."""


def check(evidence: Evidence) -> Answer:
    """Steps of several sizes, and the larger ones are quicker per sample."""
    if evidence.starved_share > LEAST:
        return None
    sizes = np.array([step.samples or 0 for step in evidence.loop.steps])
    known = {int(size): float(np.median(evidence.loop.busy_s[sizes == size])) for size in np.unique(sizes) if size > 0}
    known = {size: seconds for size, seconds in known.items() if (sizes == size).sum() >= ENOUGH and seconds > 0}
    if len(known) < 2:
        return None
    usual, largest = int(np.median(sizes)), max(known)
    if usual not in known or usual == largest:
        return None
    gain = (largest / known[largest]) / (usual / known[usual]) - 1
    if gain < LEAST:
        return None
    return Suspect(
        strength=0.7,
        summary=f"Batches of {usual} leave the device idle: {largest} give {gain:+.0%} samples/s",
        evidence=tuple(f"batch {size}: {format_ms(seconds)} a step" for size, seconds in sorted(known.items())),
        advice=f"A batch size of {largest} or more, with the learning rate adapted",
        gain=gain,
    )

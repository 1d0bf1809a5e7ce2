"""The device could process more at a time: samples per second still rise with the batch size.

A step has a fixed part (launching kernels, the optimizer, Python), which a larger batch divides between more samples.

Evidence: steps with batches of several sizes, of which the larger ones take less time per sample. With batches of one
size it takes an experiment.

Similar causes: `compute_bound` (the step takes the time there too, and a larger batch may or may not help).

Remedy: a larger batch, with the learning rate adapted; or the same effective batch without accumulation.
"""

from __future__ import annotations

import numpy as np

from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.suspect import Answer, Suspect

STEPS_PER_SIZE_MIN = 8
"""Least number of steps with batches of a size."""
GAIN_MIN = 0.2
"""Gain in samples per second from the typical size to the largest."""
STARVED_MAX = 0.2
"""Share of the time that the loop waits for data: with more, the step does not limit the rate."""


def check(evidence: Evidence) -> Answer:
    """Suspect it if there are steps with batches of several sizes, and the larger ones are quicker per sample."""
    if evidence.starved_share > STARVED_MAX:
        return None
    sizes = np.array([step.samples or 0 for step in evidence.loop.steps])
    step_s = {int(size): float(np.median(evidence.loop.busy_s[sizes == size])) for size in np.unique(sizes) if size > 0}
    step_s = {size: s for size, s in step_s.items() if (sizes == size).sum() >= STEPS_PER_SIZE_MIN and s > 0}
    if len(step_s) < 2:
        return None
    typical, largest = int(np.median(sizes)), max(step_s)
    if typical not in step_s or typical == largest:
        return None
    gain = (largest / step_s[largest]) / (typical / step_s[typical]) - 1
    if gain < GAIN_MIN:
        return None
    return Suspect(
        strength=0.7,
        summary=f"Batches of {typical} leave the device idle: {largest} give {gain:+.0%} samples/s",
        evidence=tuple(f"batch {size}: {format_ms(seconds)} a step" for size, seconds in sorted(step_s.items())),
        advice=f"A batch size of {largest} or more, with the learning rate adapted",
        gain=gain,
    )

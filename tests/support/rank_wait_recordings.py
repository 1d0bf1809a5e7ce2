"""Recordings of ranks that train together, with steps that have a wait and a duration but no phases."""

from dataclasses import replace

import numpy as np

from penstock.recording.format import RunLine
from tests.diagnose.evidence.test_evidence import recorded, step

STEPS = 50


def of_ranks(*waits, step_s=0.02):
    """Return a recording for each rank, from the seconds that its steps waited; the first wait is the start-up."""
    recordings = [recorded([step(batch, float(wait), step_s) for batch, wait in enumerate(waited)]) for waited in waits]
    return [
        replace(recording, run=RunLine(rank=rank, world_size=len(waits))) for rank, recording in enumerate(recordings)
    ]


def flat(wait_s):
    """Return the same wait for all steps."""
    return np.full(STEPS, wait_s)

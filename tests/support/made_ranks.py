"""Recordings of ranks that train together, with their waits only."""

from dataclasses import replace

import numpy as np

from penstock.recording.format import RunLine
from tests.diagnose.evidence.test_evidence import recorded, step

STEPS = 50


def of_ranks(*waits, step_s=0.02):
    """Return a recording for each rank, from the waits of its steps; the first wait is the start-up."""
    made = [recorded([step(batch, float(wait), step_s) for batch, wait in enumerate(waited)]) for waited in waits]
    return [replace(recording, run=RunLine(rank=rank, world_size=len(made))) for rank, recording in enumerate(made)]


def flat(wait_s):
    """Return equal waits for all steps."""
    return np.full(STEPS, wait_s)

"""Recordings of ranks that train together, of which nothing is known but what they waited for."""

from dataclasses import replace

import numpy as np

from penstock.recording.format import RunLine
from tests.diagnose.evidence.test_evidence import recorded, step

STEPS = 50


def of_ranks(*waits, step_s=0.02):
    """A recording for each rank, whose steps waited so long; the first of each is the start-up."""
    made = [recorded([step(at, float(wait), step_s) for at, wait in enumerate(waited)]) for waited in waits]
    return [replace(one, run=RunLine(rank=rank, world_size=len(made))) for rank, one in enumerate(made)]


def flat(wait_s):
    return np.full(STEPS, wait_s)

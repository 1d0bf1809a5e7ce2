"""Which loader of a run is compared with which of another, and what each of its steps gave and took."""

from __future__ import annotations

import numpy as np

from penstock.diagnose.evidence import Evidence, gather
from penstock.errors import RecordingError
from penstock.recording.lines import Loader
from penstock.recording.load import Recording
from penstock.verify.measures import Floats


def main_loader(recording: Recording, which: str) -> Evidence:
    """The loader that took most of the run's time; `which` is what an error calls the recording."""
    found = [evidence for evidence in gather(recording) if evidence.steps]
    if not found:
        raise RecordingError(f"{which} has no steps to compare", advice="Record at least two batches of a pass")
    return max(found, key=lambda evidence: evidence.steady_s)


def namesake(recording: Recording, of: Loader, which: str) -> Evidence:
    """The loader that the script calls the same; where there is none, the main one."""
    found = [evidence for evidence in gather(recording) if evidence.steps and _called(evidence.loader) == _called(of)]
    return found[0] if found else main_loader(recording, which)


def _called(loader: Loader) -> str | int:
    return loader.name or loader.loader


def samples(run: Evidence) -> Floats:
    """Per batch; where one was not counted, as many as the others have on average, NaN where none was."""
    usual = run.samples_per_batch
    return np.array([usual if step.samples is None else step.samples for step in run.steps], float)


def cycles(run: Evidence) -> Floats:
    """Seconds from batch to batch: the wait and the loop's own time, pauses left out."""
    return run.wait_s + run.busy_s

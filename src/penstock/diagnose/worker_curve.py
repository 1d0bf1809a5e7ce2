"""Samples per second against the number of workers, for the reports: the simulated curve and the measured point."""

from __future__ import annotations

from penstock.diagnose.evidence.evidence import Evidence, gather
from penstock.model.edits import with_workers
from penstock.recording.reader import Recording

Points = tuple[tuple[int, float], ...]
"""(workers, samples per second), in the order of the workers."""
CURVE_WORKERS_MAX = 64
"""Largest number of workers on the curve."""


def rates_over_workers(recording: Recording) -> tuple[Points, Points]:
    """Return (curve, measured) of the loader with the longest waits; both empty if its workers were not recorded."""
    loaders = gather(recording)
    if not loaders or loaders[0].workload is None or loaders[0].loop.cycle_s <= 0:
        return (), ()
    evidence, workload = loaders[0], loaders[0].workload
    samples, workers = _samples_per_batch(evidence), evidence.settings.num_workers
    most = min(CURVE_WORKERS_MAX, max(2 * workers, round(2 * evidence.machine.cores), 4))
    counts = sorted({*range(0, min(most, 8) + 1), *range(8, most + 1, 4), workers})
    curve = tuple((count, samples * with_workers(workload, count).rate()) for count in counts)
    return curve, ((workers, samples / evidence.loop.cycle_s),)


def _samples_per_batch(evidence: Evidence) -> float:
    """Return the mean samples per batch; 1 if they were not counted, so that rates are in batches per second."""
    return evidence.loop.samples_per_batch if evidence.loop.samples_per_batch > 0 else 1.0

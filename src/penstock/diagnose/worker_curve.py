"""Samples per second against the number of workers: the model's curve, and the point that was measured."""

from __future__ import annotations

from penstock.diagnose.evidence.evidence import Evidence, gather
from penstock.model.edits import with_workers
from penstock.recording.reader import Recording

Points = tuple[tuple[int, float], ...]
MOST = 64


def rates_over_workers(recording: Recording) -> tuple[Points, Points]:
    """(curve, measured) of the loader that cost most; nothing where its workers were not seen."""
    seen = gather(recording)
    if not seen or seen[0].workload is None or seen[0].loop.cycle_s <= 0:
        return (), ()
    evidence = seen[0]
    workload = seen[0].workload
    samples = _samples(evidence)
    most = min(MOST, max(2 * evidence.settings.num_workers, round(2 * evidence.machine.cores), 4))
    counts = sorted({*range(0, min(most, 8) + 1), *range(8, most + 1, 4), evidence.settings.num_workers})
    curve = tuple((count, samples * with_workers(workload, count).rate()) for count in counts)
    return curve, ((evidence.settings.num_workers, samples / evidence.loop.cycle_s),)


def _samples(evidence: Evidence) -> float:
    """Per batch; 1 where nobody counted: then it is batches per second."""
    return evidence.loop.samples_per_batch if evidence.loop.samples_per_batch > 0 else 1.0

"""The cost of waiting for data: over the run, per epoch, and in GPU-hours."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.finding import Impact
from penstock.diagnose.evidence.evidence import Evidence
from penstock.recording.reader import Recording


def compute_impact(recording: Recording, loaders: Sequence[Evidence]) -> Impact:
    """Return the waits of all loaders beyond the cost of receiving a ready batch, the starts of epochs included."""
    waited_s = sum(_waited_s(evidence) for evidence in loaders)
    run_s = sum(evidence.loop.total_s for evidence in loaders)
    if len(loaders) > 1:
        run_s = min(run_s, _span_s(loaders))
    devices = max(1, len(recording.run.machine.gpus) if recording.run.world_size == 1 else recording.run.world_size)
    return Impact(
        run_s=run_s,
        waited_s=waited_s,
        share=waited_s / run_s if run_s > 0 else 0.0,
        per_epoch_s=_per_epoch_s(loaders[0]),
        gpu_hours=waited_s * devices / 3600,
    )


def _span_s(loaders: Sequence[Evidence]) -> float:
    """Return the seconds from the first step to the end of the last: loaders used side by side share that time."""
    steps = [step for evidence in loaders for step in evidence.loop.all_steps]
    ends = [step.at_s + step.wait_s + step.step_s for step in steps]
    ends += [end.at_s for end in loaders[0].recording.epoch_ends]
    return max(ends) - min(step.at_s for step in steps)


def _waited_s(evidence: Evidence) -> float:
    beyond = (evidence.loop.wait_s - evidence.ipc.receive_s).clip(min=0.0)
    return float(beyond.sum() + evidence.loop.startup_s.sum())


def _per_epoch_s(evidence: Evidence) -> float | None:
    """Return the wait per epoch.

    It is measured if all epochs were recorded whole, else extrapolated from the mean wait per batch; None if the number
    of batches per epoch is unknown.
    """
    steps = evidence.loop.all_steps
    epochs = len({step.epoch for step in steps})
    batches = evidence.loader.batches
    if batches and epochs and len(steps) >= batches * epochs:
        return _waited_s(evidence) / epochs
    if batches is None:
        return None
    return _waited_s(evidence) / max(1, len(steps)) * batches

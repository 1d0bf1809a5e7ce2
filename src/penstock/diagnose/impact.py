"""What waiting for data costs: per epoch, over the run, in GPU-hours."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.finding import Impact
from penstock.diagnose.evidence.evidence import Evidence
from penstock.recording.reader import Recording


def impact_of(recording: Recording, seen: Sequence[Evidence]) -> Impact:
    """Over all loaders: their waits beyond what taking a ready batch costs, start-up included."""
    waited = sum(_waited_s(evidence) for evidence in seen)
    run_s = sum(evidence.loop.total_s for evidence in seen)
    if len(seen) > 1:
        run_s = min(run_s, _span_s(seen))
    main = seen[0]
    passes = len({step.pass_ for step in (*main.loop.first_steps, *main.loop.steps)})
    whole = (
        main.loader.batches
        and passes
        and len(main.loop.steps) + len(main.loop.first_steps) >= main.loader.batches * passes
    )
    devices = max(1, len(recording.run.machine.gpus) if recording.run.world_size == 1 else recording.run.world_size)
    return Impact(
        run_s=run_s,
        waited_s=waited,
        share=waited / run_s if run_s > 0 else 0.0,
        per_epoch_s=_per_epoch_s(main, whole=bool(whole), passes=passes),
        gpu_hours=waited * devices / 3600,
    )


def _span_s(seen: Sequence[Evidence]) -> float:
    """From the first step to the end of the last: loaders that are iterated over side by side share that time."""
    steps = [step for evidence in seen for step in (*evidence.loop.first_steps, *evidence.loop.steps)]
    ends = [step.at_s + step.wait_s + step.step_s for step in steps]
    ends += [end.at_s for end in seen[0].recording.pass_ends]
    return max(ends) - min(step.at_s for step in steps)


def _waited_s(evidence: Evidence) -> float:
    beyond = (evidence.loop.wait_s - evidence.ipc.receive_s).clip(min=0.0)
    return float(beyond.sum() + evidence.loop.startup_s.sum())


def _per_epoch_s(evidence: Evidence, *, whole: bool, passes: int) -> float | None:
    """Measured where whole epochs were seen, else the mean wait times the batches of one; None if nobody knows them."""
    if whole:
        return _waited_s(evidence) / passes
    if evidence.loader.batches is None:
        return None
    seen = len(evidence.loop.steps) + len(evidence.loop.first_steps)
    return _waited_s(evidence) / max(1, seen) * evidence.loader.batches

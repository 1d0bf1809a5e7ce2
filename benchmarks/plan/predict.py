"""From one recording of a load, what `penstock plan` says of other settings; then those settings, measured.

Nothing is fitted to what is judged: the recording is made before, under another setting, in another process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.plan.fresh import fresh
from benchmarks.plan.loads import Load
from benchmarks.plan.single_run import measured, recorded
from benchmarks.plan.times import Times
from benchmarks.result import in_turns
from penstock.diagnose.evidence.evidence import gather
from penstock.errors import PenstockError
from penstock.plan.from_diagnosis import samples_per_batch
from penstock.plan.predict import Prediction, thinned
from penstock.plan.profiles import profile_goal
from penstock.plan.scenario import Scenario, TrainingContext
from penstock.plan.scenario_from_evidence import observed_settings, observed_workload
from penstock.recording.reader import Recording, load
from penstock.tuner.result import WorkerSettings

WITHIN = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One setting of one load."""

    load: str
    recorded: WorkerSettings
    """What the prediction was made from."""
    setting: WorkerSettings
    predicted: float
    """Samples per second."""
    measured: float
    binds: str
    """The law that does, and who was asked: the laws alone or the simulator."""

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def near(self) -> bool:
        return abs(self.error) <= WITHIN


def judge(of: Load, folder: Path, times: Times) -> Iterator[Judged]:
    """Record it, predict, measure: each run in a process of its own, the settings in turns."""
    record = folder / f"{of.name.replace(' ', '-').replace('/', '-')}.jsonl"
    record.unlink(missing_ok=True)
    fresh(recorded, of.name, folder, record, times.record_s)
    said = predictions(load(record), of.judged)
    runs = [partial(fresh, measured, of.name, setting, folder, times.measure_s) for setting in of.judged]
    for setting, rates in zip(of.judged, in_turns(runs, times.rounds), strict=True):
        rate, by = said[setting]
        binds = by.binding.name if by.binding else "nothing"
        yield Judged(
            load=of.name,
            recorded=of.recorded,
            setting=setting,
            predicted=rate,
            measured=median(rates),
            binds=f"{binds} ({by.by})",
        )


def predictions(
    recording: Recording, settings: tuple[WorkerSettings, ...]
) -> dict[WorkerSettings, tuple[float, Prediction]]:
    """Samples per second between starts: the measured rate times the model's gain, as a plan tells it."""
    evidence = gather(recording)[0]
    workload, notes = observed_workload(evidence)
    if workload is None:
        raise PenstockError(f"nothing can be predicted from {recording.run.command}: {'; '.join(notes)}")
    each = samples_per_batch(evidence)
    now = Scenario(
        workload=thinned(workload),
        settings=observed_settings(evidence),
        place=TrainingContext(),
        profile_goal=profile_goal("balanced"),
        samples_per_batch=each,
        measured_batches_s=1 / evidence.loop.cycle_s,
    )
    found = {}
    for setting in settings:
        then = now.with_settings(
            num_workers=setting.workers, prefetch_factor=setting.prefetch, in_order=setting.in_order
        )
        found[setting] = each / evidence.loop.cycle_s * (1 + then.gain_over(now)), then.prediction
    return found

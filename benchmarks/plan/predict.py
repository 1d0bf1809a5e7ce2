"""Predicts the rates of other settings from one recording of a load, as `penstock plan` does, and then measures them.

Nothing is fitted to the settings that are compared: the recording is made before, under another setting, in another
process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.plan.fresh import fresh
from benchmarks.plan.loads import Load
from benchmarks.plan.single_run import measure_setting, record_load
from benchmarks.plan.times import Times
from benchmarks.result import in_turns
from penstock.diagnose.evidence.evidence import gather
from penstock.errors import PenstockError
from penstock.plan.predict import Prediction, thinned
from penstock.plan.profiles import profile_goal
from penstock.plan.scenario import Scenario, TrainingContext
from penstock.plan.scenario_from_evidence import observed_settings, observed_workload, samples_per_batch
from penstock.recording.reader import Recording, load
from penstock.tuner.result import WorkerSettings

WITHIN = 0.15
"""Relative error up to which a prediction counts as near."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The predicted and the measured rate of one setting of one load."""

    load: str
    recorded: WorkerSettings
    """The setting of the recording."""
    setting: WorkerSettings
    predicted: float
    """Samples per second, like `measured`."""
    measured: float
    bottleneck: str
    """The lowest bound on the rate, and in brackets whether the laws or the simulation gave the prediction."""

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def near(self) -> bool:
        return abs(self.error) <= WITHIN


def compare(case: Load, folder: Path, times: Times) -> Iterator[Comparison]:
    """Record a load, predict and measure; each run is a process of its own, and the settings take turns."""
    record = folder / f"{case.name.replace(' ', '-').replace('/', '-')}.jsonl"
    record.unlink(missing_ok=True)
    fresh(record_load, case.name, folder, record, times.record_s)
    predicted = predictions(load(record), case.predicted)
    runs = [partial(fresh, measure_setting, case.name, setting, folder, times.measure_s) for setting in case.predicted]
    for setting, rates in zip(case.predicted, in_turns(runs, times.rounds), strict=True):
        rate, prediction = predicted[setting]
        binding = prediction.binding.name if prediction.binding else "nothing"
        yield Comparison(
            load=case.name,
            recorded=case.recorded,
            setting=setting,
            predicted=rate,
            measured=median(rates),
            bottleneck=f"{binding} ({prediction.by})",
        )


def predictions(
    recording: Recording, settings: tuple[WorkerSettings, ...]
) -> dict[WorkerSettings, tuple[float, Prediction]]:
    """Return, for each setting, samples per second without the starts of workers, and the prediction behind them.

    The rate is the measured rate times the model's gain, as in a plan.
    """
    evidence = gather(recording)[0]
    workload, notes = observed_workload(evidence)
    if workload is None:
        raise PenstockError(f"nothing can be predicted from {recording.run.command}: {'; '.join(notes)}")
    batch_samples = samples_per_batch(evidence)
    current = Scenario(
        workload=thinned(workload),
        settings=observed_settings(evidence),
        context=TrainingContext(),
        goal=profile_goal("balanced"),
        samples_per_batch=batch_samples,
        measured_batches_s=1 / evidence.loop.cycle_s,
    )
    results = {}
    for setting in settings:
        changed = current.with_settings(
            num_workers=setting.workers, prefetch_factor=setting.prefetch, in_order=setting.in_order
        )
        rate = batch_samples / evidence.loop.cycle_s * (1 + changed.gain_over(current))
        results[setting] = rate, changed.prediction
    return results

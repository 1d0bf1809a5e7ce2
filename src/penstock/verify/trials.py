"""Runs of the user's command before and after a plan's changes, in turns.

The order is before, after, before, after, …, so that slow changes of the machine affect both. One run with the script's
own settings precedes them and is not counted: it warms the page cache, which would otherwise favour the later runs, and
shows which files are read.

The first tenth of the steps of each run is warm-up, and at least as many batches as were in flight when the first one
was delivered: they were made while the loop waited for it, and would raise the rate of a short run. From then on all
time counts, the start of later epochs too, because it is repeated with every epoch.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from penstock.core.plan import TORCH_PREFETCH_FACTOR
from penstock.diagnose.evidence.evidence import Evidence
from penstock.errors import RecordingError, SettingError, printable
from penstock.recording.format import LoaderLine
from penstock.recording.reader import Recording, load
from penstock.verify.cold_cache import DroppedPages, drop_files, files_read, files_under
from penstock.verify.measures import MIN_BLOCKS, RunMeasure, batch_samples, batch_seconds, main_loader, same_loader
from penstock.watcher.script.apply_plan import SETTINGS_WITHOUT_WORKERS, THREADS_SETTING
from penstock.watcher.script.runner import Script, ScriptResult, TrialOptions, run_script

WARM_UP_SHARE = 0.1
"""Share of the steps that is warm-up."""
COLD_SHARE = 0.5
"""Share of the bytes read that comes from a block device, at least, if the files are cold and on such a device."""
TAIL_BYTES = 4096
"""Bytes at the end of a script's output in which its error is searched."""
WORKER_SETTINGS = frozenset({*SETTINGS_WITHOUT_WORKERS, THREADS_SETTING, "in_order"})
"""Settings that mean nothing without workers."""

Settings = Literal["before", "after"]
"""Which settings a run uses: those of the script, or those of the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """The script to run, the settings to compare, and the number and length of the runs."""

    script: Script
    dataloader: Mapping[str, Any]
    """The plan's settings."""
    folder: Path
    """Folder for recordings and for the output of the script."""
    repeats: int = 3
    """Counted runs before, and as many after."""
    steps: int | None = None
    """Steps of each run; None: the whole script."""
    cold: bool = False
    """Whether the cached pages are dropped before each counted run."""
    paths: tuple[Path, ...] = ()
    """Files whose pages are dropped; if empty, the folders from which the first run was recorded to read."""


@dataclass(frozen=True, slots=True)
class ScheduledRun:
    """One run in the order of all runs."""

    settings: Settings
    number: int
    """Number from 1; 0 for the run that is not counted."""

    def __str__(self) -> str:
        return f"run {self.number} {self.settings}" if self.number else "the first run"

    @property
    def file_name(self) -> str:
        """Name of the run's files, without a suffix."""
        return f"{self.settings}{self.number}" if self.number else "first"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The result of one counted run."""

    run: ScheduledRun
    measure: RunMeasure
    """Samples over seconds of the steps after the warm-up."""
    wait_share: float
    """Share of the time in the loader."""
    cold: bool
    unit: str = "samples/s"
    """Unit of the rate; batches/s if samples could not be counted."""
    notes: tuple[str, ...] = ()

    @property
    def rate(self) -> float:
        """The rate in its unit."""
        return self.measure.value


def schedule_runs(request: TrialRequest) -> tuple[ScheduledRun, ...]:
    """Return all runs in order; no uncounted run is needed if the files to drop are given."""
    variants: tuple[Settings, ...] = ("before", "after")
    counted = [ScheduledRun(settings, number) for number in range(1, request.repeats + 1) for settings in variants]
    return tuple(counted) if request.cold and request.paths else (ScheduledRun("before", 0), *counted)


def min_steps(dataloader: Mapping[str, Any]) -> int:
    """Return the steps that a run with these settings needs to be judged: batches in flight, then worker rounds."""
    workers = dataloader.get("num_workers") or 1
    in_flight = workers * (dataloader.get("prefetch_factor") or TORCH_PREFETCH_FACTOR)
    return int(in_flight + MIN_BLOCKS * workers)


def run_trials(request: TrialRequest, on_start: Callable[[ScheduledRun], None]) -> list[Trial]:
    """Do all runs; `on_start` is called before each. A run that fails ends them with an error."""
    trials: list[Trial] = []
    files = files_under(request.paths)
    loader: LoaderLine | None = None
    for run in schedule_runs(request):
        on_start(run)
        dropped = drop_files(files) if request.cold and run.number else None
        recording = _record(request, run)
        evidence = main_loader(recording, str(run)) if loader is None else same_loader(recording, loader, str(run))
        if loader is None:
            _check_changes(request, evidence)
        loader = loader or evidence.loader
        if run.number:
            trials.append(_trial(request, run, evidence, dropped))
        elif request.cold:
            files = files_read(recording)
    return _with_one_unit(trials)


def _check_changes(request: TrialRequest, evidence: Evidence) -> None:
    """Refuse a plan whose settings the script has already: both kinds of runs would be the same."""
    if all(evidence.settings.in_force(name) == planned for name, planned in request.dataloader.items()):
        settings = ", ".join(f"{name}={planned}" for name, planned in request.dataloader.items())
        raise SettingError(
            f"the plan changes nothing: the script's DataLoader has {settings} already",
            advice="Plan again from a recording of this script",
        )


def _record(request: TrialRequest, run: ScheduledRun) -> Recording:
    output = request.folder / f"{run.file_name}.txt"
    dataloader = request.dataloader if run.settings == "after" else {}
    trial = TrialOptions(dataloader=dataloader, steps=request.steps, output=output)
    result = run_script(request.script, request.folder / f"{run.file_name}.jsonl", live=False, trial=trial)
    _check(result, run, output)
    return load(result.recordings[0])


def _check(result: ScriptResult, run: ScheduledRun, output: Path) -> None:
    """Raise an error if the script failed or recorded nothing."""
    if not result.stopped and result.code:
        if result.ended_by_interrupt:
            raise KeyboardInterrupt
        with_plan = " with the plan's settings" if run.settings == "after" else ""
        how = f"exit code {result.code}" if result.code > 0 else signal.Signals(-result.code).name
        raise RecordingError(f"the script failed{with_plan} ({run}, {how}): {_last_line(output)}")
    if not result.recordings:
        raise RecordingError(f"nothing was recorded of {run}", advice="Does the script write to a full disk?")


def _last_line(output: Path) -> str:
    """Return the last line of the output, in which Python names the error."""
    with open(output, "rb") as file:
        file.seek(max(0, output.stat().st_size - TAIL_BYTES))
        lines = [line for line in file.read(TAIL_BYTES).decode(errors="replace").splitlines() if line.strip()]
    return printable(lines[-1]) if lines else "it printed nothing"


def _trial(request: TrialRequest, run: ScheduledRun, evidence: Evidence, dropped: DroppedPages | None) -> Trial:
    """Return the result of a run."""
    steady = after_warm_up(evidence, request.steps)
    notes = [] if dropped is None else [*_cache_notes(evidence, dropped)]
    if run.settings == "after":
        notes += _plan_notes(request.dataloader, evidence)
    return Trial(
        run=run,
        measure=RunMeasure(batch_samples(steady), batch_seconds(steady), steady.settings.num_workers),
        wait_share=steady.loop.wait_share,
        cold=dropped is not None and dropped.cold,
        notes=tuple(notes),
    )


def _with_one_unit(trials: list[Trial]) -> list[Trial]:
    """Count batches in all runs if samples could not be counted in one of them."""
    if all(np.isfinite(trial.measure.numerator).all() for trial in trials):
        return trials
    return [
        replace(
            trial,
            measure=replace(trial.measure, numerator=np.ones(len(trial.measure.numerator))),
            unit="batches/s",
        )
        for trial in trials
    ]


def after_warm_up(evidence: Evidence, max_steps: int | None = None) -> Evidence:
    """Return the evidence without the steps of the warm-up, and of no more than the first `max_steps`."""
    steps = sorted(evidence.loop.all_steps, key=lambda step: (step.epoch, step.batch))[:max_steps]
    in_flight = evidence.settings.num_workers * evidence.settings.prefetch_factor
    warm_up = max(int(len(steps) * WARM_UP_SHARE), in_flight, 1)
    return evidence.with_steps(steps[warm_up:])


def _plan_notes(plan: Mapping[str, Any], evidence: Evidence) -> Iterator[str]:
    settings = evidence.settings
    for name, planned in plan.items():
        irrelevant = settings.num_workers == 0 and name in WORKER_SETTINGS
        if settings.in_force(name) != planned and not irrelevant:
            yield f"The plan's {name}={planned} was not in force: {settings.in_force(name)} was."


def _cache_notes(evidence: Evidence, dropped: DroppedPages) -> Iterator[str]:
    if not dropped.cold:
        yield f"Not cold: {dropped.why}."
        return
    read = sum(fetch.read_bytes for fetch in evidence.workers.fetches)
    device = sum(fetch.device_bytes for fetch in evidence.workers.fetches)
    if read and device < COLD_SHARE * read:
        yield (
            f"Of what the workers read, {device / read:.0%} came from a block device: the rest was cached, "
            "or came over a network."
        )

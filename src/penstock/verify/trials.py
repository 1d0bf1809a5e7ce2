"""The user's command, run before and after in turn: with the script's own settings, then with the plan's.

A, B, A, B …, so that what drifts meets both. One run with the script's settings goes before them and is not counted: it
warms the page cache, which would else flatter whoever comes second, and shows which files are read.

Of each run the first tenth of the steps is warm-up, and never less than the batches that were in flight when the first
one came: they were made while the loop waited for it, and would flatter a short run. From then on all time counts, the
start of later passes too, because it returns with every epoch.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from penstock.diagnose.evidence.evidence import Evidence
from penstock.errors import RecordingError, printable
from penstock.recording.format import LoaderLine, LoaderSetting
from penstock.recording.reader import Recording, load
from penstock.verify.cold_cache import DroppedPages, drop, files_read, files_under
from penstock.verify.measures import ENOUGH_BLOCKS, RunMeasure, cycles, main_loader, namesake, samples
from penstock.watcher.script.apply_plan import SETTINGS_WITHOUT_WORKERS, THREADS_SETTING, TORCH_PREFETCH_FACTOR
from penstock.watcher.script.runner import Script, ScriptResult, TrialOptions, run_script

WARM_UP = 0.1
"""Of the steps."""
SEEN_COLD = 0.5
"""Share of the bytes read that comes from a block device, if the files were cold and lie on one."""
TAIL_BYTES = 4096
OF_WORKERS = frozenset({*SETTINGS_WITHOUT_WORKERS, THREADS_SETTING, "in_order"})
"""Settings that mean nothing where there are none."""

Settings = Literal["before", "after"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """What is to be run, and how."""

    script: Script
    dataloader: Mapping[str, Any]
    """The plan's settings."""
    folder: Path
    """For recordings and what the script prints."""
    repeats: int = 3
    """Of each of the two."""
    steps: int | None = None
    """Of each run; None: the whole script."""
    cold: bool = False
    """Drop the cached pages before each counted run."""
    paths: tuple[Path, ...] = ()
    """Whose pages; if none, the folders from which the workers of the first run were seen to read."""


@dataclass(frozen=True, slots=True)
class TrialTurn:
    """One run."""

    settings: Settings
    number: int
    """From 1; 0: the one that is not counted."""

    def __str__(self) -> str:
        return f"run {self.number} {self.settings}" if self.number else "the first run"

    @property
    def name(self) -> str:
        """Of its files."""
        return f"{self.settings}{self.number}" if self.number else "first"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One counted run."""

    turn: TrialTurn
    side: RunMeasure
    """Samples over seconds of its steps after the warm-up."""
    wait_share: float
    """Of the time, in the loader."""
    cold: bool
    unit: str = "samples/s"
    """Of the rate; batches/s where samples could not be counted."""
    notes: tuple[str, ...] = ()

    @property
    def rate(self) -> float:
        """In its unit."""
        return self.side.value


def trial_turns(ask: TrialRequest) -> tuple[TrialTurn, ...]:
    """In order. Where the cold files are known beforehand there is no need of an uncounted run."""
    both: tuple[Settings, ...] = ("before", "after")
    counted = [TrialTurn(settings, number) for number in range(1, ask.repeats + 1) for settings in both]
    return tuple(counted) if ask.cold and ask.paths else (TrialTurn("before", 0), *counted)


def least_steps(dataloader: Mapping[str, Any]) -> int:
    """With fewer a run with these settings cannot be judged: batches in flight, then rounds of the workers."""
    workers = dataloader.get("num_workers") or 1
    in_flight = workers * (dataloader.get("prefetch_factor") or TORCH_PREFETCH_FACTOR)
    return int(in_flight + ENOUGH_BLOCKS * workers)


def run_trials(ask: TrialRequest, begin: Callable[[TrialTurn], None]) -> list[Trial]:
    """All of them; `begin` is told of each before it starts. A run that fails ends it."""
    trials: list[Trial] = []
    files = files_under(ask.paths)
    loader: LoaderLine | None = None
    for turn in trial_turns(ask):
        begin(turn)
        dropped = drop(files) if ask.cold and turn.number else None
        recording = _run(ask, turn)
        evidence = main_loader(recording, str(turn)) if loader is None else namesake(recording, loader, str(turn))
        loader = loader or evidence.loader
        if turn.number:
            trials.append(_trial(ask, turn, evidence, loader, dropped))
        elif ask.cold:
            files = files_read(recording)
    return _in_one_unit(trials)


def _run(ask: TrialRequest, turn: TrialTurn) -> Recording:
    output = ask.folder / f"{turn.name}.txt"
    terms = TrialOptions(dataloader=ask.dataloader if turn.settings == "after" else {}, steps=ask.steps, output=output)
    outcome = run_script(ask.script, ask.folder / f"{turn.name}.jsonl", live=False, trial=terms)
    _check(outcome, turn, output)
    return load(outcome.recordings[0])


def _check(outcome: ScriptResult, turn: TrialTurn, output: Path) -> None:
    if not outcome.stopped and outcome.code:
        if outcome.ended_by_interrupt:
            raise KeyboardInterrupt
        with_plan = " with the plan's settings" if turn.settings == "after" else ""
        how = f"exit code {outcome.code}" if outcome.code > 0 else signal.Signals(-outcome.code).name
        raise RecordingError(f"the script failed{with_plan} ({turn}, {how}): {_last_line(output)}")
    if not outcome.recordings:
        raise RecordingError(f"nothing was recorded of {turn}", advice="Does the script write to a full disk?")


def _last_line(output: Path) -> str:
    """Where Python names the error."""
    with open(output, "rb") as file:
        file.seek(max(0, output.stat().st_size - TAIL_BYTES))
        lines = [line for line in file.read(TAIL_BYTES).decode(errors="replace").splitlines() if line.strip()]
    return printable(lines[-1]) if lines else "it printed nothing"


def _trial(
    ask: TrialRequest, turn: TrialTurn, evidence: Evidence, own: LoaderLine, dropped: DroppedPages | None
) -> Trial:
    """`own` is the loader as the script sets it."""
    steady = after_warm_up(evidence, ask.steps)
    notes = [] if dropped is None else [*_cache_notes(evidence, dropped)]
    if turn.settings == "after":
        notes += _plan_notes(ask.dataloader, evidence, own)
    return Trial(
        turn=turn,
        side=RunMeasure(samples(steady), cycles(steady), steady.settings.num_workers),
        wait_share=steady.loop.wait_share,
        cold=dropped is not None and dropped.cold,
        notes=tuple(notes),
    )


def _in_one_unit(trials: list[Trial]) -> list[Trial]:
    """Batches for all, where samples could not be counted in one."""
    if all(np.isfinite(trial.side.top).all() for trial in trials):
        return trials
    return [
        replace(trial, side=replace(trial.side, top=np.ones(len(trial.side.top))), unit="batches/s") for trial in trials
    ]


def after_warm_up(evidence: Evidence, most: int | None = None) -> Evidence:
    """Its steps without those that are warm-up, and of no more than the first `most`."""
    steps = sorted((*evidence.loop.first_steps, *evidence.loop.steps), key=lambda step: (step.epoch, step.batch))[:most]
    in_flight = evidence.settings.num_workers * evidence.settings.prefetch_factor
    warm_up = max(int(len(steps) * WARM_UP), in_flight, 1)
    return evidence.with_steps(steps[warm_up:])


def _plan_notes(plan: Mapping[str, Any], evidence: Evidence, own: LoaderLine) -> Iterator[str]:
    for name, wanted in plan.items():
        idle = evidence.settings.num_workers == 0 and name in OF_WORKERS
        if evidence.settings.in_force(name) != wanted and not idle:
            yield f"The plan's {name}={wanted} was not in force: {evidence.settings.in_force(name)} was."
    if all(evidence.settings.in_force(name) == own.settings.get(name, LoaderSetting()).in_force for name in plan):
        yield "The plan changes nothing here: its settings are the script's own."


def _cache_notes(evidence: Evidence, dropped: DroppedPages) -> Iterator[str]:
    if not dropped.cold:
        yield f"Not cold: {dropped.why}."
        return
    read = sum(fetch.read_bytes for fetch in evidence.workers.fetches)
    device = sum(fetch.device_bytes for fetch in evidence.workers.fetches)
    if read and device < SEEN_COLD * read:
        yield (
            f"Of what the workers read, {device / read:.0%} came from a block device: the rest was cached, "
            "or came over a network."
        )

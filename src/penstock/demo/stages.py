"""One run of the training, watched as by `penstock run`: how fast it was, how long it waited, and its losses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.core.plan import Plan
from penstock.demo.shards import DemoSize, ShardSet
from penstock.errors import PenstockError
from penstock.recording.reader import load
from penstock.verify.judge import predicted
from penstock.verify.measures import RunMeasure, cycles, main_loader, samples
from penstock.verify.trials import after_warm_up
from penstock.watcher.script.runner import Script, ScriptResult, TrialOptions, run_script

TRAINING = Path(__file__).with_name("train.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What is run: the same script each time."""

    name: str
    """Of its files."""
    title: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Of the script, as on its command line."""
    dataloader: Mapping[str, Any] = field(default_factory=dict)
    """A plan's settings in the place of the script's own, as `penstock verify` sets them."""
    predicted_gain: float | None = None
    """Over the first stage; said before it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """What came of it."""

    stage: Stage
    recording: Path
    samples_s: float
    """After the warm-up."""
    wait_share: float
    """Of the step, in the loader."""
    workers: int
    others_cpu: float
    """Cores that other programs of the machine took meanwhile."""
    losses: tuple[float, ...]
    """Of all steps."""


def run_stage(stage: Stage, folder: Path) -> StageResult:
    """Run it to its end; recording, losses and what it prints stay in the folder."""
    losses = train(stage, folder)
    recording = _file(stage, folder, "jsonl")
    steady = after_warm_up(main_loader(load(recording), stage.title))
    if not steady.loop.steps:
        raise PenstockError(
            f"too few steps to measure anything ({stage.title})", stage="demo", advice="Give it more: --seconds"
        )
    return StageResult(
        stage=stage,
        recording=recording,
        samples_s=RunMeasure(samples(steady), cycles(steady), steady.settings.num_workers).value,
        wait_share=steady.loop.wait_share,
        workers=steady.settings.num_workers,
        others_cpu=steady.machine.others_cpu,
        losses=losses,
    )


def train(stage: Stage, folder: Path) -> tuple[float, ...]:
    """The same, for its losses only."""
    losses, output = (_file(stage, folder, suffix) for suffix in ("losses.json", "txt"))
    options = {**stage.arguments, "losses": losses}
    argv = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    terms = TrialOptions(dataloader=stage.dataloader, output=output)
    outcome = run_script(Script((str(TRAINING), *argv)), _file(stage, folder, "jsonl"), live=False, trial=terms)
    _check(outcome, stage, output)
    return tuple(json.loads(losses.read_bytes()))


def _file(stage: Stage, folder: Path, suffix: str) -> Path:
    return folder / f"{stage.name}.{suffix}"


def _check(outcome: ScriptResult, stage: Stage, output: Path) -> None:
    if outcome.ended_by_interrupt:
        raise KeyboardInterrupt
    if outcome.code:
        raise PenstockError(
            f"the training failed ({stage.title}, exit code {outcome.code})",
            stage="demo",
            advice=f"What it printed is in {output}",
        )


REPORTS = {"num-workers": 0}
"""Of the field reports' settings the one that two of them begin with, and hold to be a must on Windows."""
EXACT_S = 2.0
"""Of training on the very pixels that Pillow gives: some steps are enough to compare losses."""


def as_reported(lot: ShardSet, size: DemoSize, seconds: float) -> Stage:
    """tarfile, Pillow and torch's DataLoader."""
    arguments = {"shards": lot.folder, "size": size.image_size, "batch-size": size.batch_size, "seconds": seconds}
    return Stage(name="before", title="as in the reports", arguments={**arguments, **REPORTS})


def as_planned(before: Stage, plan: Plan) -> Stage:
    """The plan's settings in its DataLoader."""
    gain, _ = predicted(plan)
    return replace(before, name="tuned", title="DataLoader as planned", dataloader=plan.dataloader, predicted_gain=gain)


def with_loader(before: Stage, gain: float | None) -> Stage:
    """penstock.Loader on the same shards."""
    arguments = {**before.arguments, "loader": "penstock"}
    return replace(before, name="loader", title="penstock.Loader", arguments=arguments, predicted_gain=gain)


def on_packed(ours: Stage, packed: ShardSet, gain: float | None) -> Stage:
    """The same on packed ones."""
    arguments = {**ours.arguments, "shards": packed.folder}
    return replace(ours, name="packed", title="Loader, packed shards", arguments=arguments, predicted_gain=gain)


def with_exact_pixels(ours: Stage) -> Stage:
    """Not raced: pictures decoded and shrunk as Pillow does it, so that losses can be the same."""
    changed: dict[str, Any] = {"quality": "exact", "seconds": min(EXACT_S, ours.arguments["seconds"])}
    return replace(ours, name="exact", title="Loader, exact pixels", arguments={**ours.arguments, **changed})

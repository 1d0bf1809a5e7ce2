"""One run of the demo's training, watched as by `penstock run`: its rate, its waiting and its losses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from penstock.core.plan import Plan
from penstock.demo.shards import DemoSize, ShardSet
from penstock.errors import PenstockError
from penstock.recording.reader import load
from penstock.verify.judge import predicted_gain
from penstock.verify.measures import RunMeasure, batch_samples, batch_seconds, main_loader
from penstock.verify.trials import after_warm_up
from penstock.watcher.script.runner import Script, ScriptResult, TrialOptions, run_script

TRAINING = Path(__file__).with_name("train.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The settings of one run; the script is always the same."""

    name: str
    """The stem of its files."""
    title: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the script, as on its command line."""
    dataloader: Mapping[str, Any] = field(default_factory=dict)
    """A plan's settings that replace the script's own, as `penstock verify` applies them."""
    predicted_gain: float | None = None
    """Predicted gain over the first stage, known before the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """The result of one run."""

    stage: Stage
    recording: Path
    samples_s: float
    """Samples per second after the warm-up."""
    wait_share: float
    """Share of the step that was spent in the loader."""
    workers: int
    others_cpu: float
    """Cores that other programs of the machine used meanwhile."""
    losses: tuple[float, ...]
    """The losses of all steps."""


def run_stage(stage: Stage, folder: Path) -> StageResult:
    """Run the training to its end; its recording, its losses and its output stay in the folder."""
    losses = train(stage, folder)
    recording = _file(stage, folder, "jsonl")
    steady = after_warm_up(main_loader(load(recording), stage.title))
    if not steady.loop.steps:
        raise PenstockError(
            f"too few steps to measure anything ({stage.title})", stage="demo", advice="Give it more: --duration"
        )
    return StageResult(
        stage=stage,
        recording=recording,
        samples_s=RunMeasure(batch_samples(steady), batch_seconds(steady), steady.settings.num_workers).value,
        wait_share=steady.loop.wait_share,
        workers=steady.settings.num_workers,
        others_cpu=steady.machine.others_cpu,
        losses=losses,
    )


def train(stage: Stage, folder: Path) -> tuple[float, ...]:
    """Run the training and return its losses only."""
    losses, output = (_file(stage, folder, suffix) for suffix in ("losses.json", "txt"))
    options = {**stage.arguments, "losses": losses}
    argv = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    trial = TrialOptions(dataloader=stage.dataloader, output=output)
    outcome = run_script(Script((str(TRAINING), *argv)), _file(stage, folder, "jsonl"), live=False, trial=trial)
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
            advice=f"Its output is in {output}",
        )


# -- the stages ----------------------------------------------------------------------------------------------------

REPORTED_SETTINGS = {"num-workers": 0}
"""The setting with which two of the field reports begin; they consider it necessary on Windows."""
EXACT_S = 2.0
"""Seconds of training on exactly the pixels that Pillow gives: some steps are enough to compare losses."""


def as_reported(shards: ShardSet, size: DemoSize, seconds: float) -> Stage:
    """Return the training as in the field reports: tarfile, Pillow and torch's DataLoader."""
    arguments = {"shards": shards.folder, "size": size.image_size, "batch-size": size.batch_size, "seconds": seconds}
    return Stage(name="before", title="as in the reports", arguments={**arguments, **REPORTED_SETTINGS})


def as_planned(before: Stage, plan: Plan) -> Stage:
    """Return the same training with the plan's settings in its DataLoader."""
    gain, _ = predicted_gain(plan)
    return replace(before, name="tuned", title="DataLoader as planned", dataloader=plan.dataloader, predicted_gain=gain)


def with_loader(before: Stage, gain: float | None) -> Stage:
    """Return the same training with penstock.Loader on the same shards."""
    arguments = {**before.arguments, "loader": "penstock"}
    return replace(before, name="loader", title="penstock.Loader", arguments=arguments, predicted_gain=gain)


def on_packed(loader: Stage, packed: ShardSet, gain: float | None) -> Stage:
    """Return the training with penstock.Loader on packed shards."""
    arguments = {**loader.arguments, "shards": packed.folder}
    return replace(loader, name="packed", title="Loader, packed shards", arguments=arguments, predicted_gain=gain)


def with_exact_pixels(loader: Stage) -> Stage:
    """Return the training with images decoded exactly as by Pillow, for its losses only: its rate is not shown."""
    changed: dict[str, Any] = {"quality": "exact", "seconds": min(EXACT_S, loader.arguments["seconds"])}
    return replace(loader, name="exact", title="Loader, exact pixels", arguments={**loader.arguments, **changed})


# -- losses --------------------------------------------------------------------------------------------------------

SAME_INPUTS = 1e-4
"""Tolerance for equal inputs: floating-point sums may differ in their order from run to run, and training amplifies
that."""
OTHER_PIXELS = 1e-3
"""Tolerance between decoders that shrink differently, or for images that were encoded once more. A few 1e-5 were
measured; images exchanged within a batch make 3e-3, black images 5e-2, another batch far more."""
FIRST_STEPS = 32
"""Steps that are compared for other pixels: a training that sees a few images again and again learns their pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossAgreement:
    """The comparison of two runs' losses, step by step."""

    steps: int
    """Number of steps that were compared."""
    largest: float
    """Largest difference of the losses of a step, as a share of the first run's loss."""
    tolerance: float

    @property
    def agrees(self) -> bool:
        """Whether the losses agree; without a common step they do not."""
        return self.steps > 0 and self.largest <= self.tolerance

    def __str__(self) -> str:
        if not self.agrees:
            return f"DIFFER by {self.largest:.2g}" if self.steps else "NONE"
        return "the same" if self.largest == 0 else f"within {self.largest:.1g}"


def loss_agreement(before: Sequence[float], after: Sequence[float], *, same_pixels: bool) -> LossAgreement:
    """Compare losses over the common steps, or over the first ones if the pixels are not the same.

    Two runs have the same losses if they had the same inputs in the same order.
    """
    steps = min(len(before), len(after), *(() if same_pixels else (FIRST_STEPS,)))
    first, second = np.array(before[:steps]), np.array(after[:steps])
    largest = float((np.abs(second - first) / np.abs(first)).max()) if steps else 0.0
    return LossAgreement(steps=steps, largest=largest, tolerance=SAME_INPUTS if same_pixels else OTHER_PIXELS)

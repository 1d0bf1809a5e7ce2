"""The demo, step by step: make shards, watch, diagnose, plan, and run the same training again with the plan applied."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Group, RenderableType
from rich.text import Text

from penstock.core.finding import Diagnosis
from penstock.core.format import format_bytes, format_gain
from penstock.core.plan import Plan
from penstock.demo.forecast import forecast_samples_s
from penstock.demo.report import verdict_text, write_page
from penstock.demo.shards import DemoSize, ShardSet, index_parts, make_demo_shards, pack_for_training
from penstock.demo.stages import (
    LossAgreement,
    Stage,
    StageResult,
    as_planned,
    as_reported,
    loss_agreement,
    on_packed,
    run_stage,
    train,
    with_exact_pixels,
    with_loader,
)
from penstock.diagnose.verdict import RunDiagnosis, diagnose_run
from penstock.plan.document import save_plan
from penstock.plan.from_diagnosis import plan_from_diagnosis
from penstock.recording.reader import Recording, load
from penstock.report.plan import plan_text
from penstock.verify.measures import main_loader
from penstock.watcher.machine.storage_recheck import add_storage_recheck

Say = Callable[[str], None]
"""Adds a sentence to the line that is printed when a part of the demo is done."""


class DemoOutput(Protocol):
    """The output of the demo for the user."""

    def doing(self, name: str, what: str) -> AbstractContextManager[Say]:
        """Show what is being done during a `with` block; the block gets a function that reports its result."""
        ...

    def show(self, what: RenderableType) -> None:
        """Show a table or a text."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """The result of the whole demo."""

    diagnosis: Diagnosis
    """The diagnosis of the first run."""
    plan: Plan
    stages: tuple[StageResult, ...]
    """The runs of the training; the first one is the training as it was."""
    agreements: dict[str, LossAgreement]
    """The comparison of a run's losses with those of the first run, by the name of the stage."""
    report: Path
    seconds: float


@dataclass(frozen=True, slots=True)
class DemoRun:
    """One run of the demo."""

    folder: Path
    """The demo's own folder."""
    output: DemoOutput
    size: DemoSize
    seconds: float
    """Duration of each training from its first batch on."""

    def run(self) -> DemoResult:
        """Run the whole demo."""
        began = time.monotonic()
        shards = self._make_shards()
        before = self._run(as_reported(shards, self.size, self.seconds))
        diagnosed = self._diagnose(before)
        recording, diagnosis = diagnosed.recording, diagnosed.diagnosis
        plan = self._plan(diagnosed)
        tuned = self._run(as_planned(before.stage, plan))
        self._diagnose(tuned)
        loader = self._run(with_loader(before.stage, self._loader_gain(recording, before, shards)))
        exact = self._compare_exact(before, with_exact_pixels(loader.stage))
        packed_shards = self._pack(shards)
        gain = self._loader_gain(recording, before, packed_shards)
        packed = self._run(on_packed(loader.stage, packed_shards, gain))
        stages = (before, tuned, loader, packed)
        return DemoResult(
            diagnosis=diagnosis,
            plan=plan,
            stages=stages,
            agreements={**{each.stage.name: _compare_losses(before, each) for each in stages[1:]}, "exact": exact},
            report=write_page(self.folder / "report.html", recording, diagnosis, stages),
            seconds=time.monotonic() - began,
        )

    def _make_shards(self) -> ShardSet:
        with self.output.doing("made", "making shards") as say:
            shards = make_demo_shards(self.folder / "shards", self.size)
            parts, size = index_parts(shards.paths), format_bytes(shards.size_bytes)
            say(f"{shards.samples} samples in {len(shards.paths)} shards, {size}; {parts} parts indexed")
        return shards

    def _pack(self, shards: ShardSet) -> ShardSet:
        with self.output.doing("packed", "packing") as say:
            packed = pack_for_training(shards, self.folder / "packed", self.size.image_size)
            sizes = f"{format_bytes(shards.sample_bytes)} → {format_bytes(packed.sample_bytes)} a sample"
            say(f"images to {self.size.image_size} px, arrays raw: {sizes}")
        return packed

    def _run(self, stage: Stage) -> StageResult:
        with self.output.doing("trained", f"training, {stage.title}") as say:
            result = run_stage(stage, self.folder)
            waiting = f"{result.wait_share:.0%} of the step waiting for data"
            say(f"{stage.title}: {result.samples_s:,.0f} images/s, {waiting}")
        return result

    def _diagnose(self, result: StageResult) -> RunDiagnosis:
        """Diagnose a run as `penstock run` does."""
        add_storage_recheck(result.recording)
        diagnosed = diagnose_run(load(result.recording))
        self.output.show(verdict_text(diagnosed.diagnosis))
        return diagnosed

    def _plan(self, diagnosed: RunDiagnosis) -> Plan:
        path = self.folder / "plan.yaml"
        with self.output.doing("planned", "simulating other settings") as say:
            plan = plan_from_diagnosis(diagnosed)
            save_plan(plan, path)
            say(f"written to {path}")
        self.output.show(Group(Text(), plan_text(plan), Text()))
        return plan

    def _loader_gain(self, recording: Recording, before: StageResult, shards: ShardSet) -> float | None:
        """Return the predicted gain of penstock.Loader on these shards over the first run."""
        with self.output.doing("probed", "decoding a few samples") as say:
            evidence = main_loader(recording, before.stage.title)
            rate = forecast_samples_s(evidence, shards.paths[0], self.size.image_size)
            gain = None if rate is None else rate / before.samples_s - 1
            say(f"with penstock.Loader, predicted: {format_gain(gain)}")
        return gain

    def _compare_exact(self, before: StageResult, stage: Stage) -> LossAgreement:
        with self.output.doing("compared", f"training, {stage.title}") as say:
            agreement = loss_agreement(before.losses, train(stage, self.folder), same_pixels=True)
            say(f"{stage.title}: losses {agreement} in {agreement.steps} steps")
        return agreement


def _compare_losses(before: StageResult, after: StageResult) -> LossAgreement:
    """Compare losses: torch's DataLoader gives the same pixels with any settings; penstock.Loader decodes for speed."""
    return loss_agreement(before.losses, after.losses, same_pixels="loader" not in after.stage.arguments)

"""The demo's way, hop by hop: make, watch, diagnose, plan, and the same training again with the plan applied."""

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
from penstock.demo.forecast import loader_samples_s
from penstock.demo.loss_agreement import LossAgreement, loss_agreement
from penstock.demo.page import verdict_text, write_page
from penstock.demo.shards import DemoSize, ShardSet, index, make, pack_for_training
from penstock.demo.stages import (
    Stage,
    StageResult,
    as_planned,
    as_reported,
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

Said = Callable[[str], None]


class DemoOutput(Protocol):
    """Who tells the user."""

    def doing(self, name: str, what: str) -> AbstractContextManager[Said]:
        """While it lasts; what came of it is said to what this gives."""
        ...

    def show(self, what: RenderableType) -> None:
        """Something to read."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """All that was found."""

    diagnosis: Diagnosis
    """Of the first run."""
    plan: Plan
    stages: tuple[StageResult, ...]
    """As it was first."""
    agreements: dict[str, LossAgreement]
    """With the losses of the first stage, by the name of the stage."""
    report: Path
    seconds: float


@dataclass(frozen=True, slots=True)
class DemoRun:
    """What is shown, and where, and to whom."""

    folder: Path
    """The demo's own."""
    tell: DemoOutput
    size: DemoSize
    seconds: float
    """Of each training, from its first batch on."""

    def go(self) -> DemoResult:
        """All of it."""
        began = time.monotonic()
        lot = self._make()
        before = self._run(as_reported(lot, self.size, self.seconds))
        diagnosed = self._diagnose(before)
        recording, diagnosis = diagnosed.recording, diagnosed.diagnosis
        plan = self._plan(diagnosed)
        tuned = self._run(as_planned(before.stage, plan))
        self._diagnose(tuned)
        ours = self._run(with_loader(before.stage, self._loader_gain(recording, before, lot)))
        exact = self._compare(before, with_exact_pixels(ours.stage))
        packed_lot = self._pack(lot)
        gain = self._loader_gain(recording, before, packed_lot)
        packed = self._run(on_packed(ours.stage, packed_lot, gain))
        stages = (before, tuned, ours, packed)
        return DemoResult(
            diagnosis=diagnosis,
            plan=plan,
            stages=stages,
            agreements={**{each.stage.name: _losses(before, each) for each in stages[1:]}, "exact": exact},
            report=write_page(self.folder / "report.html", recording, diagnosis, stages),
            seconds=time.monotonic() - began,
        )

    def _make(self) -> ShardSet:
        with self.tell.doing("made", "making shards") as said:
            lot = make(self.folder / "shards", self.size)
            parts, size = index(lot.shards), format_bytes(lot.size_bytes)
            said(f"{lot.samples} samples in {len(lot.shards)} shards, {size}; {parts} parts indexed")
        return lot

    def _pack(self, lot: ShardSet) -> ShardSet:
        with self.tell.doing("packed", "packing") as said:
            packed = pack_for_training(lot, self.folder / "packed", self.size.image_size)
            sizes = f"{format_bytes(lot.sample_bytes)} → {format_bytes(packed.sample_bytes)} a sample"
            said(f"pictures to {self.size.image_size} px, arrays raw: {sizes}")
        return packed

    def _run(self, stage: Stage) -> StageResult:
        with self.tell.doing("trained", f"training, {stage.title}") as said:
            measured = run_stage(stage, self.folder)
            waiting = f"{measured.wait_share:.0%} of the step waiting for data"
            said(f"{stage.title}: {measured.samples_s:,.0f} images/s, {waiting}")
        return measured

    def _diagnose(self, measured: StageResult) -> RunDiagnosis:
        """As `penstock run` does it."""
        add_storage_recheck(measured.recording)
        diagnosed = diagnose_run(load(measured.recording))
        self.tell.show(verdict_text(diagnosed.diagnosis))
        return diagnosed

    def _plan(self, diagnosed: RunDiagnosis) -> Plan:
        path = self.folder / "plan.yaml"
        with self.tell.doing("planned", "asking the model") as said:
            plan = plan_from_diagnosis(diagnosed)
            save_plan(plan, path)
            said(f"written to {path}")
        self.tell.show(Group(Text(), plan_text(plan), Text()))
        return plan

    def _loader_gain(self, recording: Recording, before: StageResult, lot: ShardSet) -> float | None:
        with self.tell.doing("probed", "decoding a few samples") as said:
            seen = main_loader(recording, before.stage.title)
            rate = loader_samples_s(seen, lot.shards[0], self.size.image_size)
            gain = None if rate is None else rate / before.samples_s - 1
            said(f"with penstock.Loader, predicted: {format_gain(gain)}")
        return gain

    def _compare(self, before: StageResult, stage: Stage) -> LossAgreement:
        with self.tell.doing("compared", f"training, {stage.title}") as said:
            found = loss_agreement(before.losses, train(stage, self.folder), same_pixels=True)
            said(f"{stage.title}: losses {found} in {found.steps} steps")
        return found


def _losses(before: StageResult, after: StageResult) -> LossAgreement:
    """torch's DataLoader gives the same pixels, whatever its settings; ours decodes for speed."""
    return loss_agreement(before.losses, after.losses, same_pixels="loader" not in after.stage.arguments)

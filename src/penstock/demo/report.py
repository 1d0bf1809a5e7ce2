"""The output of the demo: the verdict, the page about the first run, and all runs in one table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from penstock.core.finding import Diagnosis
from penstock.core.format import format_gain
from penstock.core.write_file import write_result
from penstock.demo.stages import OTHER_PIXELS, StageResult
from penstock.diagnose.worker_curve import rates_over_workers
from penstock.errors import printable
from penstock.plan.document import plan_document
from penstock.recording.reader import Recording
from penstock.report.html import render_html
from penstock.report.text import table

if TYPE_CHECKING:
    from penstock.demo.demo import DemoResult

MAX_FINDINGS = 2
"""Findings shown in the terminal; the page has all of them."""
BUSY_CORES = 0.25
"""If other programs use more cores than this, the result mentions it; any machine has some background load."""
COLUMNS = ("", "images/s", "waiting", "predicted", "measured", "losses")


# -- the first run -------------------------------------------------------------------------------------------------


def verdict_text(diagnosis: Diagnosis) -> Group:
    """Return the sentence of the diagnosis, and the advice of the first findings."""
    advice = [f"→ {each.rule}: {each.advice}" for each in diagnosis.findings[:MAX_FINDINGS] if each.advice]
    sentence = Text(printable(f"{diagnosis.verdict}: {diagnosis.sentence}"), style="bold")
    return Group(Text(), sentence, *(Text(printable(line)) for line in advice), Text())


def write_page(path: Path, recording: Recording, diagnosis: Diagnosis, stages: Sequence[StageResult]) -> Path:
    """Write the page about the first run; its notes list the later runs, and its plot has the second run's rate."""
    before, tuned = stages[:2]
    notes = [
        f"{each.stage.title}: {each.samples_s:,.0f} images/s, {format_gain(each.samples_s / before.samples_s - 1)} "
        f"(predicted {format_gain(each.stage.predicted_gain)}), {each.wait_share:.0%} of the step waiting for data"
        for each in stages[1:]
    ]
    curve, measured = rates_over_workers(recording)
    page = render_html(
        recording,
        replace(diagnosis, notes=(*diagnosis.notes, *notes)),
        curve=curve,
        measured=(*measured, (tuned.workers, tuned.samples_s)),
    )
    write_result(path, page)
    return path


# -- all runs ------------------------------------------------------------------------------------------------------


def result_text(result: DemoResult) -> Group:
    """Return the table of all runs, and how to read it."""
    rows = [_row(result, stage) for stage in result.stages]
    grid = table("before and after", COLUMNS, rows, right=COLUMNS[1:5])
    return Group(Text(), grid, *(Text(sentence) for sentence in _explanations(result)))


def _explanations(result: DemoResult) -> Iterator[str]:
    exact = result.agreements["exact"]
    others = max(stage.others_cpu for stage in result.stages)
    if others > BUSY_CORES:
        yield f"Other programs used up to {others:.1f} cores meanwhile: rates on a busy machine mean little."
    yield (
        "waiting: share of the step. Gains are over the first run; there is one run of each, so a few percent may be "
        "chance."
    )
    yield (
        f"Losses are compared with the first run's, step by step: the same batches in the same order. penstock.Loader "
        f'with quality="exact" gives the very same pixels: {exact} in {exact.steps} steps. "fast" shrinks images '
        f"while it decodes, and packed ones were encoded once more: there losses may differ by {OTHER_PIXELS:.1%}."
    )


def result_document(result: DemoResult) -> dict[str, Any]:
    """Return the result as plain values for JSON."""
    return {
        "verdict": result.diagnosis.verdict,
        "sentence": result.diagnosis.sentence,
        "findings": [finding.rule for finding in result.diagnosis.findings],
        "plan": plan_document(result.plan),
        "stages": [_document(result, stage) for stage in result.stages],
        "losses": {name: {**asdict(found), "agrees": found.agrees} for name, found in result.agreements.items()},
        "report": str(result.report),
        "seconds": result.seconds,
    }


def _row(result: DemoResult, measured: StageResult) -> tuple[str, ...]:
    name = measured.stage.name
    first = measured is result.stages[0]
    return (
        measured.stage.title,
        f"{measured.samples_s:,.0f}",
        f"{measured.wait_share:.0%}",
        "" if first else format_gain(measured.stage.predicted_gain),
        "" if first else format_gain(_gain(result, measured)),
        "" if first else str(result.agreements[name]),
    )


def _gain(result: DemoResult, measured: StageResult) -> float:
    """Return the gain over the first run: 0.5 is 50% more images per second."""
    return measured.samples_s / result.stages[0].samples_s - 1


def _document(result: DemoResult, measured: StageResult) -> dict[str, Any]:
    return {
        "name": measured.stage.name,
        "title": measured.stage.title,
        "images_s": measured.samples_s,
        "wait_share": measured.wait_share,
        "workers": measured.workers,
        "others_cpu": measured.others_cpu,
        "steps": len(measured.losses),
        "predicted_gain": measured.stage.predicted_gain,
        "gain": _gain(result, measured),
        "recording": str(measured.recording),
    }

"""Before and after, as a terminal shows it and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Group
from rich.text import Text

from penstock.core.format import format_gain
from penstock.demo.demo import DemoResult
from penstock.demo.loss_agreement import OTHER_PIXELS
from penstock.demo.stages import StageResult
from penstock.plan.document import plan_document
from penstock.report.text import table

BUSY = 0.25
"""Cores: less is what any machine does beside."""
COLUMNS = ("", "images/s", "waiting", "predicted", "measured", "losses")


def result_text(result: DemoResult) -> Group:
    """The table, and what it means."""
    rows = [_row(result, measured) for measured in result.stages]
    grid = table("before and after", COLUMNS, rows, right=COLUMNS[1:5])
    return Group(Text(), grid, *(Text(sentence) for sentence in sentences(result)))


def sentences(result: DemoResult) -> Iterator[str]:
    """How to read it."""
    exact = result.agreements["exact"]
    others = max(measured.others_cpu for measured in result.stages)
    if others > BUSY:
        yield f"Other programs took up to {others:.1f} cores meanwhile: figures of a busy machine say little."
    yield "waiting: share of the step. Gains count from the first run; one run each, so a few percent are chance."
    yield (
        f"Losses are compared with the first run's, step by step: the same batches in the same order. penstock.Loader "
        f'with quality="exact" gives the very same pixels: {exact} in {exact.steps} steps. "fast" shrinks pictures '
        f"while it decodes, and packed ones were encoded once more: there losses may differ by {OTHER_PIXELS:.1%}."
    )


def result_document(result: DemoResult) -> dict[str, Any]:
    """The same for programs."""
    return {
        "verdict": result.diagnosis.verdict,
        "sentence": result.diagnosis.sentence,
        "findings": [finding.rule for finding in result.diagnosis.findings],
        "plan": plan_document(result.plan),
        "stages": [_document(result, measured) for measured in result.stages],
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
        "" if first else format_gain(gain(result, measured)),
        "" if first else str(result.agreements[name]),
    )


def gain(result: DemoResult, measured: StageResult) -> float:
    """Over the first run: 0.5 is half as many images a second again."""
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
        "gain": gain(result, measured),
        "recording": str(measured.recording),
    }

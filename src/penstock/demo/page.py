"""What the demo writes and shows of the first run: the verdict's first lines, and the page that draws it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Group
from rich.text import Text

from penstock.core.finding import Diagnosis
from penstock.core.format import format_gain
from penstock.demo.stages import StageResult
from penstock.diagnose.worker_curve import rates_over_workers
from penstock.errors import printable
from penstock.recording.reader import Recording
from penstock.report.html import render_html

MOST_FINDINGS = 2
"""All are on the page."""


def verdict_text(diagnosis: Diagnosis) -> Group:
    """The sentence, and what to do about it."""
    advice = [f"→ {each.rule}: {each.advice}" for each in diagnosis.findings[:MOST_FINDINGS] if each.advice]
    sentence = Text(printable(f"{diagnosis.verdict}: {diagnosis.sentence}"), style="bold")
    return Group(Text(), sentence, *(Text(printable(line)) for line in advice), Text())


def write_page(path: Path, recording: Recording, diagnosis: Diagnosis, stages: Sequence[StageResult]) -> Path:
    """The first run; what became of it stands in the notes, and the second's rate beside its own."""
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
    path.write_text(page, encoding="utf-8")
    return path

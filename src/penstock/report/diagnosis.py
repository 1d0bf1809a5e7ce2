"""A diagnosis as a terminal shows it: 80 columns, and understood without colour."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.text import Text

from penstock.core.finding import Diagnosis, Finding, Impact
from penstock.core.format import format_duration, format_gain
from penstock.errors import printable
from penstock.recording.reader import Recording
from penstock.report.numbers import setting_rows

WIDTH = 80

_STYLES = {"healthy": "bold green", "findings": "bold red", "undetermined": "bold yellow"}
_Line = tuple[str, str]
"""A line and its style."""


def diagnosis_text(diagnosis: Diagnosis, recording: Recording | None = None) -> Text:
    """The verdict first, then what speaks for it; `.plain` is the same without styles.

    With a recording, the settings that were changed on the way are named too. Print it with `soft_wrap=True`.
    """
    blocks = [
        _wrapped(f"{diagnosis.verdict}: {diagnosis.sentence}", style=_STYLES[diagnosis.verdict]),
        _wrapped(diagnosis.ranks.sentence if diagnosis.ranks else ""),
        *(_finding(number, finding) for number, finding in enumerate(diagnosis.findings, 1)),
        _rejected(diagnosis),
        _block("To decide", [diagnosis.experiment] if diagnosis.experiment else []),
        _block("Cost", [impact_words(diagnosis.impact)] if diagnosis.impact else []),
        _block("Settings changed on the way", changed_settings(recording) if recording else []),
        _block("Notes", diagnosis.notes),
    ]
    text = Text()
    for at, block in enumerate(list(lines) for lines in blocks):
        for line, style in [("", ""), *block] if at and block else block:
            text.append(line, style or None).append("\n")
    text.right_crop()
    return text


# -- words that all reports share ----------------------------------------------------------------------------------


def gain_words(finding: Finding) -> str:
    """`+85% samples/s (+70% to +99%)`; large ones as factors."""
    low, high = format_gain(finding.gain_low), format_gain(finding.gain_high)
    span = "" if low == high == format_gain(finding.gain) else f" ({low} to {high})"
    return f"{format_gain(finding.gain)} samples/s{span}"


def full_stop(text: str) -> str:
    """So that another sentence may follow."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def impact_words(impact: Impact) -> str:
    """What waiting cost, in one sentence."""
    words = (
        f"{format_duration(impact.waited_s)} of {format_duration(impact.run_s)} went into waiting ({impact.share:.0%})"
    )
    if impact.per_epoch_s is not None:
        words += f", {format_duration(impact.per_epoch_s)} per epoch"
    if impact.gpu_hours >= 0.01:
        words += f", {impact.gpu_hours:.3g} GPU-hours"
    return f"{words}."


def changed_settings(recording: Recording) -> list[str]:
    """`train: num_workers 32 → 4`: as requested, and as in force."""
    rows = (row for row in setting_rows(recording) if row.changed)
    return [f"{row.loader}: {row.name} requested {row.requested}, in force {row.in_force}" for row in rows]


# -- blocks --------------------------------------------------------------------------------------------------------


def _finding(number: int, finding: Finding) -> Iterator[_Line]:
    head = f"{number}. {finding.rule}"
    tail = f"{gain_words(finding)} · confidence {finding.confidence:.2f}"
    if len(head) + len(tail) + 2 <= WIDTH:
        yield f"{head}{tail:>{WIDTH - len(head)}}", "bold"
    else:
        yield head, "bold"
        yield from _wrapped(tail, indent=3)
    yield from _wrapped(finding.summary, indent=3)
    for fact in finding.evidence:
        yield from _wrapped(fact, indent=3, bullet="· ")
    if finding.advice:
        yield from _wrapped(finding.advice, indent=3, bullet="→ ", style="green")
    if finding.experiment:
        yield from _wrapped(f"To be sure: {finding.experiment}", indent=3, bullet="? ")


def _rejected(diagnosis: Diagnosis) -> Iterator[_Line]:
    return _block("Looks alike, but is not", [f"{look.rule}: {look.why}" for look in diagnosis.rejected])


def _block(title: str, paragraphs: Sequence[str]) -> Iterator[_Line]:
    if paragraphs:
        yield title, "bold"
    for paragraph in paragraphs:
        yield from _wrapped(paragraph, indent=3, bullet="· " if len(paragraphs) > 1 else "")


def _wrapped(text: str, *, indent: int = 0, bullet: str = "", style: str = "") -> Iterator[_Line]:
    """Folded at 80 columns, the lines after the first under its text."""
    margin = " " * indent
    first, rest = margin + bullet, margin + " " * len(bullet)
    for line in textwrap.wrap(
        printable(text), WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    ):
        yield line, style

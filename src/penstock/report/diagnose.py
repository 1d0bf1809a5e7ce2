"""A diagnosis as text for a terminal: 80 columns wide, and understandable without colours."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from penstock.core.finding import Diagnosis, Finding, Impact
from penstock.core.format import format_duration, format_gain, format_percent
from penstock.errors import printable
from penstock.recording.reader import Recording
from penstock.report.run_summary import setting_rows

WIDTH = 80
SHOWN_SHARE = 0.002
"""Share of the run from which on a kind of time has a line of its own."""

_STYLES = {"healthy": "bold green", "findings": "bold red", "undetermined": "bold yellow"}
_Line = tuple[str, str]
"""A line and its style."""


def diagnosis_text(diagnosis: Diagnosis, recording: Recording | None = None, *, width: int = WIDTH) -> Text:
    """Return the verdict, then the findings and their evidence; `.plain` is the same without styles.

    With a recording, the settings that were changed are listed too. Lines are folded at `width`, or at 80 columns in a
    wider terminal. Print the text with `soft_wrap=True`.
    """
    width = min(width, WIDTH)
    blocks = [
        _wrap(f"{diagnosis.verdict}: {diagnosis.sentence}", width, style=_STYLES[diagnosis.verdict]),
        _wrap(diagnosis.ranks.sentence if diagnosis.ranks else "", width),
        *(_finding(number, finding, width) for number, finding in enumerate(diagnosis.findings, 1)),
        _block("Ruled out", [f"{cause.rule}: {cause.why}" for cause in diagnosis.rejected], width),
        _block("To decide", [diagnosis.experiment] if diagnosis.experiment else [], width),
        _block("Where the time went", account_lines(diagnosis.account), width),
        _block("Cost", [impact_sentence(diagnosis.impact)] if diagnosis.impact else [], width),
        _block("Settings that were changed", changed_settings(recording) if recording else [], width),
        _block("Notes", diagnosis.notes, width),
    ]
    text = Text()
    for number, block in enumerate(list(lines) for lines in blocks):
        for line, style in [("", ""), *block] if number and block else block:
            text.append(line, style or None).append("\n")
    text.right_crop()
    return text


# -- sentences that all reports share ------------------------------------------------------------------------------


def finding_gain(finding: Finding) -> str:
    """Return a finding's gain with its interval: `+85% samples/s (+70% to +99%)`."""
    gain, low, high = (format_gain(each) for each in (finding.gain, finding.gain_low, finding.gain_high))
    interval = "" if low == high == gain else f" ({low} to {high})"
    return f"{gain} samples/s{interval}"


def impact_sentence(impact: Impact) -> str:
    """Return what waiting for data cost, in one sentence."""
    waited, run = format_duration(impact.waited_s), format_duration(impact.run_s)
    text = f"{waited} of {run} went into waiting ({impact.share:.0%})"
    if impact.per_epoch_s is not None:
        text += f", {format_duration(impact.per_epoch_s)} per epoch"
    if impact.gpu_hours >= 0.01:
        text += f", {impact.gpu_hours:.3g} GPU-hours"
    return f"{text}."


def account_lines(account: Mapping[str, float]) -> list[str]:
    """Return a line for each kind of time that takes a thousandth of the run or more, and one for the rest."""
    run_s = sum(account.values())
    shown = {kind: seconds for kind, seconds in account.items() if seconds >= SHOWN_SHARE * run_s}
    lines = [
        f"{format_percent(seconds / run_s)} {kind} ({format_duration(seconds)})" for kind, seconds in shown.items()
    ]
    rest_s = run_s - sum(shown.values())
    return [*lines, f"{format_percent(rest_s / run_s)} other"] if rest_s > 0.0005 * run_s else lines


def changed_settings(recording: Recording) -> list[str]:
    """Return a line for each setting whose value in force is not the requested one."""
    rows = (row for row in setting_rows(recording) if row.changed)
    return [f"{row.loader}: {row.name} requested {row.requested}, in force {row.in_force}" for row in rows]


# -- blocks of lines -----------------------------------------------------------------------------------------------


def _finding(number: int, finding: Finding, width: int) -> Iterator[_Line]:
    head = f"{number}. {finding.rule}"
    tail = f"{finding_gain(finding)} · confidence {finding.confidence:.2f}"
    if len(head) + len(tail) + 2 <= width:
        yield f"{head}{tail:>{width - len(head)}}", "bold"
    else:
        yield head, "bold"
        yield from _wrap(tail, width, indent=3)
    yield from _wrap(finding.summary, width, indent=3)
    for fact in finding.evidence:
        yield from _wrap(fact, width, indent=3, bullet="· ")
    if finding.advice:
        yield from _wrap(finding.advice, width, indent=3, bullet="→ ", style="green")
    if finding.experiment:
        yield from _wrap(f"To be sure: {finding.experiment}", width, indent=3, bullet="? ")


def _block(title: str, paragraphs: Sequence[str], width: int) -> Iterator[_Line]:
    if paragraphs:
        yield title, "bold"
    for paragraph in paragraphs:
        yield from _wrap(paragraph, width, indent=3, bullet="· " if len(paragraphs) > 1 else "")


def _wrap(text: str, width: int, *, indent: int = 0, bullet: str = "", style: str = "") -> Iterator[_Line]:
    """Yield the lines of text folded at `width` columns; those after the first are aligned with its text."""
    margin = " " * indent
    first, rest = margin + bullet, margin + " " * len(bullet)
    for line in textwrap.wrap(
        printable(text), width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    ):
        yield line, style

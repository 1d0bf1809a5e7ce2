"""A diagnosis as a document, in the order an investigation is written up: what, evidence, why, cost, what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator

from penstock.core.finding import Diagnosis, Finding, RankSummary
from penstock.core.format import format_count, format_duration
from penstock.errors import printable
from penstock.recording.reader import Recording
from penstock.report.diagnosis import full_stop, gain_words, impact_words
from penstock.report.machine import machine_rows
from penstock.report.numbers import (
    RunNumbers,
    loader_name,
    looked_note,
    main_evidence,
    numbers,
    parts,
    setting_rows,
    without_steps,
)
from penstock.report.plots import strip

_SPECIAL = re.compile(r"[\\`*\[\]#|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|^[-+>](?=\s)|^\d+(?=[.)]\s)")

MOST_RANKS = 16
"""In the table, those that cost most first."""


def escaped(text: str) -> str:
    """User-supplied text as it is: no markup, no HTML, no line breaks."""
    plain = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(lambda found: f"\\{found[0]}" if not found[0].isdigit() else f"{found[0]}\\", plain)


def render_markdown(recording: Recording, diagnosis: Diagnosis) -> str:
    """Summary, evidence, analysis, impact, plan, conclusion."""
    sections = {
        "Summary": _summary(recording, diagnosis),
        "Evidence": _evidence(recording, diagnosis),
        "Analysis": _analysis(diagnosis),
        "Impact": _impact(diagnosis),
        "Plan": _plan(diagnosis),
        "Conclusion": _conclusion(diagnosis),
    }
    document = ["# Where the time went", ""]
    for number, (title, lines) in enumerate(sections.items(), 1):
        document += [f"## {number}. {title}", "", *lines, ""]
    return "\n".join(document).rstrip() + "\n"


def _summary(recording: Recording, diagnosis: Diagnosis) -> Iterator[str]:
    yield f"**{diagnosis.verdict.capitalize()}.** {escaped(diagnosis.sentence)}"
    yield ""
    if diagnosis.ranks is not None:
        yield escaped(diagnosis.ranks.sentence)
        yield ""
    if recording.run.command:
        yield f"- command: {escaped(' '.join(recording.run.command))}"
    for name, value in machine_rows(recording):
        yield f"- {name}: {escaped(value)}"
    evidence = main_evidence(recording)
    if evidence is not None:
        yield from _numbers(numbers(evidence))


def _numbers(found: RunNumbers) -> Iterator[str]:
    loader = f"{loader_name(found.loader)} ({found.loader.type})"
    yield f"- loader: {escaped(loader)}, {found.batches} batches, {format_count(found.passes, 'epoch')}"
    rate = f"{found.batches_per_s:,.3g} batches/s"
    yield f"- rate: {rate if found.samples_per_s is None else f'{found.samples_per_s:,.4g} samples/s ({rate})'}"
    yield f"- waiting for data: {found.wait_share:.1%} of the loop's time"
    yield f"- step alone: {format_duration(found.step_s)} per batch"
    if found.gpu is not None:
        yield f"- GPU utilisation: {found.gpu:.0%}"


# -- evidence ------------------------------------------------------------------------------------------------------


def _evidence(recording: Recording, diagnosis: Diagnosis) -> Iterator[str]:
    evidence = main_evidence(recording)
    if evidence is None:
        yield f"{without_steps(recording)}."
    else:
        found = strip(evidence)
        yield "### Where the mean step went"
        yield ""
        yield from _table(
            ("part", "time", "share"),
            [
                (f"{'↳ ' * part.depth}{part.name}", format_duration(part.seconds), f"{part.share:.1%}")
                for part in parts(evidence)
            ],
        )
        yield ""
        if note := looked_note(evidence):
            yield note
            yield ""
        yield "### Slow batches"
        yield ""
        every = f", one every {found.period} batches" if found.period else ""
        longest = format_duration(float(evidence.loop.wait_s.max()))
        yield f"{found.slow} of {len(evidence.loop.steps)} batches were slow{every}. The longest wait was {longest}."
    if diagnosis.ranks is not None:
        yield ""
        yield from _ranks(diagnosis.ranks)
    rows = setting_rows(recording)
    if rows:
        yield ""
        yield "### Settings"
        yield ""
        yield from _table(
            ("loader", "setting", "requested", "in force", ""),
            [(row.loader, row.name, row.requested, row.in_force, "changed" if row.changed else "") for row in rows],
        )
    for note in dict.fromkeys((*diagnosis.notes, *recording.notes)):
        yield ""
        yield f"Note: {escaped(note)}"


def _ranks(seen: RankSummary) -> Iterator[str]:
    yield "### Ranks"
    yield ""
    worst = sorted(seen.each, key=lambda rank: -rank.alone_s)[:MOST_RANKS]
    yield from _table(
        ("rank", "waited for data", "was last", "cost the others"),
        [
            (str(rank.rank), format_duration(rank.waited_s), f"{rank.last:.0%}", format_duration(rank.alone_s))
            for rank in worst
        ],
    )


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(escaped(cell) for cell in row)} |"


# -- what follows from it ------------------------------------------------------------------------------------------


def _analysis(diagnosis: Diagnosis) -> Iterator[str]:
    if not diagnosis.findings:
        yield "No cause was found that costs time." if diagnosis.verdict == "healthy" else "No cause can be named."
    for number, finding in enumerate(diagnosis.findings, 1):
        yield from _finding(number, finding)
    if diagnosis.rejected:
        yield "### Looks alike, but is not"
        yield ""
        yield from (f"- **{escaped(look.rule)}**: {escaped(look.why)}" for look in diagnosis.rejected)


def _finding(number: int, finding: Finding) -> Iterator[str]:
    yield f"### {number}. {escaped(finding.rule)}"
    yield ""
    yield escaped(full_stop(finding.summary))
    yield ""
    yield from (f"- {escaped(fact)}" for fact in finding.evidence)
    yield f"- Without it: {gain_words(finding)}. Confidence {finding.confidence:.2f}."
    yield ""


def _impact(diagnosis: Diagnosis) -> Iterator[str]:
    yield impact_words(diagnosis.impact) if diagnosis.impact else "Not known: too little was recorded."


def _plan(diagnosis: Diagnosis) -> Iterator[str]:
    steps = [f"{escaped(full_stop(f.advice))} Expected: {gain_words(f)}." for f in diagnosis.findings if f.advice]
    steps += [f"To be sure: {escaped(f.experiment)}" for f in diagnosis.findings if f.experiment]
    if diagnosis.experiment:
        steps.append(f"To decide: {escaped(diagnosis.experiment)}")
    yield from (f"{number}. {step}" for number, step in enumerate(steps, 1))
    if not steps:
        yield "Nothing to change."


def _conclusion(diagnosis: Diagnosis) -> Iterator[str]:
    if diagnosis.findings:
        worst = diagnosis.findings[0]
        yield f"The first thing to remove is **{escaped(worst.rule)}**: {gain_words(worst)}."
    elif diagnosis.verdict == "healthy":
        yield "The data arrives in time. Whatever is gained, is gained in the step itself."
    else:
        yield "Undetermined: the recording does not tell the causes apart. The experiment above does."

"""A diagnosis as a Markdown document in the order of an incident report: summary, evidence, cause, cost, plan."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.finding import Diagnosis, Finding, RankSummary
from penstock.core.format import format_count, format_duration
from penstock.diagnose.evidence.evidence import Evidence
from penstock.recording.reader import Recording
from penstock.report.diagnose import account_lines, finding_gain, impact_sentence
from penstock.report.plots import step_strip
from penstock.report.run_summary import (
    RunNumbers,
    loader_name,
    machine_rows,
    main_evidence,
    no_steps_text,
    run_numbers,
    setting_rows,
    step_parts,
    timed_steps_note,
)
from penstock.report.text import end_sentence, escape_markdown, markdown_table

MAX_RANKS = 16
"""Ranks in the table; those that cost the others most come first."""


def render_markdown(recording: Recording, diagnosis: Diagnosis) -> str:
    """Return the document with its six sections."""
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
    yield f"**{diagnosis.verdict.capitalize()}.** {escape_markdown(diagnosis.sentence)}"
    yield ""
    if diagnosis.ranks is not None:
        yield escape_markdown(diagnosis.ranks.sentence)
        yield ""
    if recording.run.command:
        yield f"- command: {escape_markdown(' '.join(recording.run.command))}"
    for name, value in machine_rows(recording):
        yield f"- {name}: {escape_markdown(value)}"
    evidence = main_evidence(recording)
    if evidence is not None:
        yield from _key_numbers(run_numbers(evidence))


def _key_numbers(numbers: RunNumbers) -> Iterator[str]:
    loader = f"{loader_name(numbers.loader)} ({numbers.loader.type})"
    yield f"- loader: {escape_markdown(loader)}, {numbers.batches} batches, {format_count(numbers.epochs, 'epoch')}"
    rate = f"{numbers.batches_per_s:,.3g} batches/s"
    yield f"- rate: {rate if numbers.samples_per_s is None else f'{numbers.samples_per_s:,.4g} samples/s ({rate})'}"
    yield f"- waiting for data: {numbers.wait_share:.1%} of the loop's time"
    yield f"- step alone: {format_duration(numbers.step_s)} per batch"
    if numbers.gpu is not None:
        yield f"- GPU utilisation: {numbers.gpu:.0%}"


# -- evidence ------------------------------------------------------------------------------------------------------


def _evidence(recording: Recording, diagnosis: Diagnosis) -> Iterator[str]:
    evidence = main_evidence(recording)
    if evidence is None:
        yield f"{no_steps_text(recording)}."
    else:
        yield from _steps(evidence)
    if diagnosis.ranks is not None:
        yield ""
        yield from _ranks(diagnosis.ranks)
    rows = setting_rows(recording)
    if rows:
        yield ""
        yield "### Settings"
        yield ""
        yield from markdown_table(
            ("loader", "setting", "requested", "in force", ""),
            [(row.loader, row.name, row.requested, row.in_force, "changed" if row.changed else "") for row in rows],
        )
    for note in dict.fromkeys((*diagnosis.notes, *recording.notes)):
        yield ""
        yield f"Note: {escape_markdown(note)}"


def _steps(evidence: Evidence) -> Iterator[str]:
    strip = step_strip(evidence)
    yield "### Where the mean step went"
    yield ""
    yield from markdown_table(
        ("part", "time", "share"),
        [
            (f"{'↳ ' * part.depth}{part.name}", format_duration(part.seconds), f"{part.share:.1%}")
            for part in step_parts(evidence)
        ],
    )
    yield ""
    if note := timed_steps_note(evidence):
        yield note
        yield ""
    yield "### Slow batches"
    yield ""
    every = f", one every {strip.period} batches" if strip.period else ""
    longest = format_duration(float(evidence.loop.wait_s.max()))
    yield f"{strip.slow} of {len(evidence.loop.steps)} batches were slow{every}. The longest wait was {longest}."


def _ranks(ranks: RankSummary) -> Iterator[str]:
    yield "### Ranks"
    yield ""
    worst = sorted(ranks.each, key=lambda rank: -rank.alone_s)[:MAX_RANKS]
    yield from markdown_table(
        ("rank", "waited for data", "was last", "cost the others"),
        [
            (str(rank.rank), format_duration(rank.waited_s), f"{rank.last:.0%}", format_duration(rank.alone_s))
            for rank in worst
        ],
    )


# -- causes and what to do -----------------------------------------------------------------------------------------


def _analysis(diagnosis: Diagnosis) -> Iterator[str]:
    if not diagnosis.findings:
        yield "No cause was found that costs time." if diagnosis.verdict == "healthy" else "No cause can be named."
    for number, finding in enumerate(diagnosis.findings, 1):
        yield from _finding(number, finding)
    if diagnosis.rejected:
        yield "### Ruled out"
        yield ""
        yield from (
            f"- **{escape_markdown(cause.rule)}**: {escape_markdown(cause.why)}" for cause in diagnosis.rejected
        )


def _finding(number: int, finding: Finding) -> Iterator[str]:
    yield f"### {number}. {escape_markdown(finding.rule)}"
    yield ""
    yield escape_markdown(end_sentence(finding.summary))
    yield ""
    yield from (f"- {escape_markdown(fact)}" for fact in finding.evidence)
    yield f"- Without it: {finding_gain(finding)}. Confidence {finding.confidence:.2f}."
    yield ""


def _impact(diagnosis: Diagnosis) -> Iterator[str]:
    yield impact_sentence(diagnosis.impact) if diagnosis.impact else "Not known: too little was recorded."
    if diagnosis.account:
        yield ""
        yield "Where the time went:"
        yield ""
        yield from (f"- {escape_markdown(line)}" for line in account_lines(diagnosis.account))


def _plan(diagnosis: Diagnosis) -> Iterator[str]:
    findings = diagnosis.findings
    steps = [f"{escape_markdown(end_sentence(f.advice))} Expected: {finding_gain(f)}." for f in findings if f.advice]
    steps += [f"To be sure: {escape_markdown(f.experiment)}" for f in findings if f.experiment]
    if diagnosis.experiment:
        steps.append(f"To decide: {escape_markdown(diagnosis.experiment)}")
    yield from (f"{number}. {step}" for number, step in enumerate(steps, 1))
    if not steps:
        yield "Nothing to change."


def _conclusion(diagnosis: Diagnosis) -> Iterator[str]:
    if diagnosis.findings:
        worst = diagnosis.findings[0]
        yield f"The first thing to remove is **{escape_markdown(worst.rule)}**: {finding_gain(worst)}."
    elif diagnosis.verdict == "healthy":
        yield "The data arrives in time. The run can only become faster in the step itself."
    else:
        yield "Undetermined: the recording does not distinguish the causes. The experiment above does."

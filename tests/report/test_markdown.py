"""The document has the order of a field report, and no name can add markup to it."""

from dataclasses import replace

import msgspec
import pytest
from tests.support.report_runs import (
    RANKS_SENTENCE,
    all_well,
    empty,
    findings,
    healthy,
    of_ranks,
    stalling,
    torch_run,
    undetermined,
)

from penstock.report.html import render_html
from penstock.report.markdown import MAX_RANKS, render_markdown
from penstock.report.text import escape_markdown


def test_sections_come_in_the_order_of_a_field_report():
    text = render_markdown(stalling(), findings())
    titles = [line for line in text.splitlines() if line.startswith("## ")]
    assert titles == ["## 1. Summary", "## 2. Evidence", "## 3. Analysis", "## 4. Impact", "## 5. Plan",
                      "## 6. Conclusion"]  # fmt: skip


def test_the_numbers_of_the_run_are_in_the_document():
    text = render_markdown(stalling(), findings())
    for words in ("24 of 199 batches were slow, one every 8 batches", "step alone: 50 ms", "GPU utilisation: 39%",
                  "| train | num_workers | 32 | 8 | changed |", "**lagging_worker**: all 8 workers",
                  "36 min of 1 h went into waiting (60%)", "1. Raise num_workers from 8 to 16. Expected: +85%",
                  "The first thing to remove is **too_few_workers**"):  # fmt: skip
        assert words in text


def test_phases_that_were_timed_in_some_steps_only_are_noted():
    run = stalling()
    steps = tuple(msgspec.structs.replace(step, profiled=step.batch % 10 == 1) for step in run.steps)
    assert "\nPhases were timed in 20 of 199 steps.\n" in render_markdown(replace(run, steps=steps), findings())
    assert "timed in 20 of 199 steps" in render_html(replace(run, steps=steps), findings())
    assert "Phases were timed" not in render_markdown(run, findings())


def test_a_healthy_run_needs_no_change():
    text = render_markdown(healthy(), all_well())
    assert "Nothing to change." in text
    assert "No cause was found that costs time." in text


def test_an_empty_recording_is_reported_with_the_next_experiment():
    text = render_markdown(empty(), undetermined())
    assert "No steps were recorded." in text
    assert "To decide: Record at least 50 batches." in text


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
        ("a|b", "a\\|b"),
        ("[x](javascript:y)", "\\[x\\](javascript:y)"),
        ("`code` *bold*", "\\`code\\` \\*bold\\*"),
        ("# title", "\\# title"),
        ("- item", "\\- item"),
        ("1. item", "1\\. item"),
        ("num_workers", "num_workers"),
        ("__init__", "\\_\\_init\\_\\_"),
        ("two\nlines", "two\\\\nlines"),
        ("&lt;", "&amp;lt;"),
    ],
)
def test_names_are_escaped(name, safe):
    assert escape_markdown(name) == safe


def test_hostile_names_and_sentences_stay_text():
    text = render_markdown(torch_run(name="<img src=x onerror=y>|"), findings(sentence="<script>\n## fake"))
    assert "<img" not in text
    assert "<script" not in text
    assert "\n## fake" not in text


def test_advice_without_a_full_stop_gets_one():
    worst = replace(findings().findings[0], advice="Raise num_workers")
    text = render_markdown(stalling(), findings(findings=(worst,)))
    assert "1. Raise num_workers. Expected: +85%" in text


def test_a_note_that_file_and_diagnosis_share_is_printed_once():
    recording = replace(stalling(), notes=("1 line skipped",))
    assert render_markdown(recording, findings(notes=("1 line skipped",))).count("Note: 1 line skipped") == 1


def test_the_ranks_that_cost_most_come_first():
    text = render_markdown(healthy(), of_ranks(30))
    assert f"{RANKS_SENTENCE}." in text
    rows = text.split("### Ranks")[1].split("\n\n")[1].splitlines()[2:]
    assert rows[0] == "| 29 | 30 s | 290% | 29 s |"
    assert len(rows) == MAX_RANKS


def test_a_single_rank_is_not_mentioned():
    assert "anks" not in render_markdown(healthy(), all_well())

"""The text of `penstock plan`: every change with its reason, the limits, and no escapes from data."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from penstock.core.plan import Change, Plan, ThroughputLimit
from penstock.report.plan import headline, plan_markdown, plan_text

HOSTILE = "\x1b[31mred\x07[bold]|<script>\u202e"
FULL = Plan(
    source="recording",
    fingerprint={},
    samples_s=36.0,
    planned_samples_s=71.5,
    limits=(
        ThroughputLimit(name="cpu", samples_s=74.0),
        ThroughputLimit(name="step", samples_s=117.0),
        ThroughputLimit(name="tides", samples_s=1e6),
    ),
    most_gain=2.25,
    memory_bytes=3_200_000_000,
    changes=(
        Change(
            scope="dataloader",
            name="num_workers",
            now=32,
            then=2,
            reason="2 workers fill 2 cores",
            gain=0.98,
            cost="900 MB less",
        ),
        Change(scope="data", name="images", now=None, then="half the side", reason="decoding is slow.", gain=4.0),
        Change(scope="step", name="precision", now=None, then=["a", 1], reason="try it"),
    ),
    dataloader={"num_workers": 2, "pin_memory": False},
    loader={"num_workers": 2},
    notes=("rank 1 waited most",),
)
BARE = Plan(source="dataset", fingerprint={})


def shown(thing, width=80):
    console = Console(file=io.StringIO(), width=width)
    console.print(thing)
    return console.file.getvalue()


def test_the_text_is_complete_in_order_and_80_columns_wide():
    text = shown(plan_text(FULL))
    assert max(len(line) for line in text.splitlines()) <= 80
    parts = ["3 changes: 36 → 71.5 samples/s (+99%) by those to DataLoader and step, predicted.", "num_workers",
            "1. 2 workers fill 2 cores.", "Cost: 900 MB", "2. decoding is slow.", "3. try it.", "What limits it",
            "the cores", "binds first", "the step itself", "binds next", "tides", "more than ×3.2", "3.2 GB",
            "num_workers=2, pin_memory=False", "penstock.Loader: num_workers=2",
            "Made from a recording, profile balanced.",
            "rank 1 waited most"]  # fmt: skip
    flat = " ".join(text.split())
    places = [flat.find(words) for words in parts]
    assert places == sorted(places), dict(zip(parts, places, strict=True))
    assert -1 not in places


def test_the_table_has_the_value_now_and_then_and_the_gain():
    text = shown(plan_text(FULL), width=120)
    row = next(line.split() for line in text.splitlines() if "num_workers  " in line)
    assert row == ["1", "DataLoader", "num_workers", "32", "2", "+98%"]
    assert next(line for line in text.splitlines() if "precision" in line).rstrip().endswith("not known")
    assert "×5" in text


def test_a_plan_without_changes_is_two_lines():
    assert shown(plan_text(BARE)).splitlines() == ["Nothing to change.", "Made from a dataset, profile balanced."]


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (BARE, "Nothing to change."),
        (replace(BARE, samples_s=1234.0), "Nothing to change: 1,234 samples/s predicted."),
        (
            replace(FULL, changes=FULL.changes[:1]),
            "1 change: 36 → 71.5 samples/s (+99%) by those to DataLoader and step, predicted.",
        ),
        (replace(FULL, changes=FULL.changes[2:]), "1 change: 36 samples/s as it runs."),
        (replace(FULL, changes=FULL.changes[1:2]), "1 change: 36 samples/s as it runs."),
        (replace(FULL, samples_s=0.0), "3 changes."),
        (replace(FULL, samples_s=None), "3 changes."),
    ],
)
def test_the_headline_contains_only_what_is_known(plan, words):
    assert headline(plan) == words


def test_an_infinite_gain_is_not_printed():
    assert "more than" not in shown(plan_text(replace(FULL, most_gain=float("inf"))))


def hostile():
    change = Change(scope="step", name=HOSTILE, now=HOSTILE, then={HOSTILE: 1}, reason=HOSTILE, cost=HOSTILE)
    limits = (ThroughputLimit(name=HOSTILE, samples_s=1.0),)
    settings = {HOSTILE: HOSTILE}
    return replace(FULL, changes=(change,), limits=limits, dataloader=settings, loader=settings, notes=(HOSTILE,))


@pytest.mark.parametrize("form", [lambda plan: shown(plan_text(plan)), plan_markdown])
def test_control_characters_in_names_are_escaped(form):
    text = form(hostile())
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
    assert "x1b" in text


def test_markup_in_names_stays_text():
    assert "[bold]" in shown(plan_text(hostile()), width=200)
    assert "<script>" not in plan_markdown(hostile())


def test_a_long_value_is_cut():
    change = Change(scope="loader", name="transform", now="x" * 500, then=1, reason="r")
    assert "x" * 61 not in shown(plan_text(replace(FULL, changes=(change,))), width=300)


def test_markdown_has_sections_and_complete_tables():
    text = plan_markdown(FULL)
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "# What to change", "## Changes", "## Limits", "## Prediction", "## Notes",
    ]  # fmt: skip
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in table[:5]} == {9}
    assert "| 1 | DataLoader | num_workers | 32 | 2 | +98% | 2 workers fill 2 cores. | 900 MB less |" in table
    assert "## Changes" not in plan_markdown(BARE)

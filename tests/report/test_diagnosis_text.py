"""What `penstock diagnose` prints: complete, 80 columns, no escapes from data."""

from dataclasses import replace

import pytest
from tests.support.report_runs import all_well, empty, findings, stalling, undetermined

from penstock.core.finding import Finding, Impact
from penstock.report.diagnosis import diagnosis_text, gain_words, impact_words


def finding(**fields):
    base = {"rule": "decode_bound", "gain": 0.5, "gain_low": 0.4, "gain_high": 0.6, "confidence": 0.9, "summary": "s"}
    return Finding(**{**base, **fields})


def test_everything_is_said_in_80_columns_and_in_order():
    text = diagnosis_text(findings(), stalling()).plain
    assert max(len(line) for line in text.splitlines()) <= 80
    said = ["findings: Data comes", "1. too_few_workers", "+85% samples/s (+70% to +99%) · confidence 0.94",
            "· ready batches at the stall: 0 of 16", "→ Raise num_workers", "? To be sure:", "2. slow_collate",
            "Looks alike, but is not", "lagging_worker: all 8 workers", "Cost", "36 min of 1 h", "0.6 GPU-hours",
            "Settings changed on the way", "train: num_workers requested 32, in force 8", "Notes"]  # fmt: skip
    places = [text.index(words) for words in said]
    assert places == sorted(places)


def test_a_healthy_run_is_told_in_few_lines():
    text = diagnosis_text(all_well()).plain
    assert text.splitlines()[0] == "healthy: The data arrives in time."
    assert "Looks alike" not in text
    assert len(text.splitlines()) <= 4


def test_an_undetermined_run_names_the_experiment():
    text = diagnosis_text(undetermined(), empty()).plain
    assert "To decide\n   Record at least 50 batches." in text


def test_control_characters_of_names_do_not_reach_the_terminal():
    hostile = findings(sentence="shard \x1b[31mred\x07\x1b]0;title\x07", notes=("a\nb\u202e",))
    text = diagnosis_text(hostile).plain
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\u202e" not in text
    assert "\\x1b[31mred" in text


def test_markup_of_rich_in_names_is_plain_text():
    text = diagnosis_text(findings(sentence="[bold red]name[/]"))
    assert "[bold red]name[/]" in text.plain


@pytest.mark.parametrize(
    ("gains", "words"),
    [
        ((0.5, 0.4, 0.6), "+50% samples/s (+40% to +60%)"),
        ((0.5, 0.5, 0.5), "+50% samples/s"),
        ((8.0, 7.0, 9.5), "×9 samples/s (×8 to ×10.5)"),
        ((0.0, -0.02, 0.05), "+0% samples/s (-2% to +5%)"),
    ],
)
def test_gains_are_percent_or_factors(gains, words):
    gain, low, high = gains
    assert gain_words(finding(gain=gain, gain_low=low, gain_high=high)) == words


def test_impact_leaves_out_what_is_not_known():
    impact = Impact(run_s=7200, waited_s=3600, share=0.5)
    assert impact_words(impact) == "1 h of 2 h went into waiting (50%)."
    assert impact_words(replace(impact, per_epoch_s=60, gpu_hours=8)).endswith("1 min per epoch, 8 GPU-hours.")

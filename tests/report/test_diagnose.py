"""The text of `penstock diagnose`: complete, 80 columns wide, without escapes from data."""

from dataclasses import replace

import pytest
from tests.support.report_runs import RANKS_SENTENCE, all_well, empty, findings, of_ranks, stalling, undetermined

from penstock.core.finding import Finding, Impact
from penstock.report.diagnose import diagnosis_text, finding_gain, impact_sentence


def finding(**fields):
    base = {"rule": "decode_bound", "gain": 0.5, "gain_low": 0.4, "gain_high": 0.6, "confidence": 0.9, "summary": "s"}
    return Finding(**{**base, **fields})


def test_the_text_is_complete_in_order_and_80_columns_wide():
    text = diagnosis_text(findings(), stalling()).plain
    assert max(len(line) for line in text.splitlines()) <= 80
    parts = ["findings: Data comes", "1. too_few_workers", "+85% samples/s (+70% to +99%) · confidence 0.94",
            "· ready batches at the stall: 0 of 16", "→ Raise num_workers", "? To be sure:", "2. slow_collate",
            "Ruled out", "lagging_worker: all 8 workers", "Cost", "36 min of 1 h", "0.6 GPU-hours",
            "Settings that were changed", "train: num_workers requested 32, in force 8", "Notes"]  # fmt: skip
    places = [text.index(words) for words in parts]
    assert places == sorted(places)


def test_the_text_of_a_healthy_run_is_short():
    text = diagnosis_text(all_well()).plain
    assert text.splitlines()[0] == "healthy: The data arrives in time."
    assert "Ruled out" not in text
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


def test_rich_markup_in_names_stays_text():
    text = diagnosis_text(findings(sentence="[bold red]name[/]"))
    assert "[bold red]name[/]" in text.plain


@pytest.mark.parametrize(
    ("gains", "words"),
    [
        ((0.5, 0.4, 0.6), "+50% samples/s (+40% to +60%)"),
        ((0.5, 0.5, 0.5), "+50% samples/s"),
        ((8.0, 7.0, 9.5), "×9.0 samples/s (×8.0 to ×10.5)"),
        ((0.0, -0.02, 0.05), "+0% samples/s (-2% to +5%)"),
    ],
)
def test_gains_are_percent_or_factors(gains, words):
    gain, low, high = gains
    assert finding_gain(finding(gain=gain, gain_low=low, gain_high=high)) == words


def test_the_impact_leaves_out_what_is_not_known():
    impact = Impact(run_s=7200, waited_s=3600, share=0.5)
    assert impact_sentence(impact) == "1 h of 2 h went into waiting (50%)."
    assert impact_sentence(replace(impact, per_epoch_s=60, gpu_hours=8)).endswith("1 min per epoch, 8 GPU-hours.")


def test_the_sentence_on_the_ranks_follows_the_verdict():
    first, second, third, *_ = diagnosis_text(of_ranks()).plain.splitlines()
    assert first.startswith("healthy: ")
    assert (second, third) == ("", f"{RANKS_SENTENCE}.")


def test_a_single_rank_is_not_mentioned():
    assert "anks" not in diagnosis_text(all_well()).plain

"""The comparison of two recordings: which differences are significant, and how they are shown."""

import io
import json
import random
from dataclasses import replace

import msgspec
import pytest
from rich.console import Console
from tests.support.report_runs import empty, healthy, stalling, torch_run

from penstock.errors import RecordingError
from penstock.report.compare import (
    Comparison,
    compare,
    comparison_document,
    comparison_markdown,
    comparison_sentence,
    comparison_text,
    gate,
)
from penstock.verify.measures import Measure


def noisy(seed, scale=1.0, steps=300):
    """Return a run without workers whose waits are random."""
    recording = torch_run(batches=steps, workers=1, fetch_s=0.01)
    rng = random.Random(seed)
    waits = [msgspec.structs.replace(step, wait_s=scale * rng.expovariate(10)) for step in recording.steps]
    return replace(recording, steps=tuple(waits), fetches=())


def measure(comparison, name):
    return next(found for found in comparison.measures if found.name == name)


def test_a_run_that_does_not_wait_is_better_and_the_wait_shows_why():
    comparison = compare(stalling(), healthy())
    rate = measure(comparison, "rate")
    assert comparison.answer == "better"
    assert rate.ratio == pytest.approx(20 / 8, rel=0.05)  # limited by the step (1/C) instead of the workers (W/S)
    assert rate.low <= rate.ratio <= rate.high
    assert measure(comparison, "share waiting").answer == "better"
    assert measure(comparison, "worker").ratio == pytest.approx(0.13)
    assert measure(comparison, "step: forward").answer == "inconclusive"  # the same in both


def test_a_run_that_waits_more_is_worse():
    assert compare(healthy(), stalling()).answer == "worse"


def test_a_run_compared_with_itself_is_inconclusive_in_everything():
    comparison = compare(stalling(), stalling())
    assert {found.answer for found in comparison.measures} == {"inconclusive"}
    assert comparison_sentence(comparison).startswith("Inconclusive: b runs at 1.00× the rate of a")


def test_two_runs_of_the_same_noise_are_inconclusive_and_of_half_the_noise_better():
    assert compare(noisy(1), noisy(2)).answer == "inconclusive"
    assert compare(noisy(1), noisy(2, scale=0.4)).answer == "better"


def seldom_timed(seed):
    """Return a run with a phase of random length that is timed in one step of sixteen."""
    recording, rng = torch_run(batches=1600, workers=1, fetch_s=0.01), random.Random(seed)
    known = [
        {"phases": {"forward": rng.expovariate(50)}} if batch % 16 == 5 else {"phases": {}, "profiled": False}
        for batch in range(1600)
    ]
    steps = [msgspec.structs.replace(step, **fields) for step, fields in zip(recording.steps, known, strict=True)]
    return replace(recording, steps=tuple(steps))


def test_the_interval_of_a_seldom_timed_phase_is_that_of_its_timed_steps():
    forward = measure(compare(seldom_timed(1), seldom_timed(2)), "step: forward")
    assert forward.a == pytest.approx(0.02, rel=0.3)
    assert (
        forward.high / forward.low > 1.4
    )  # 100 timed steps each: 1.96 times the root of 2/100 in both directions is 1.7


def test_runs_with_different_batch_sizes_are_compared_per_sample():
    small, large = torch_run(samples=8, fetch_s=0.3), torch_run(samples=24, fetch_s=0.9)
    comparison = compare(small, large)
    assert measure(comparison, "rate").unit == "samples/s"
    assert measure(comparison, "worker").unit == "s/sample"
    assert measure(comparison, "worker").ratio == pytest.approx(1.0)
    assert "Batches of 8 and 24: times are per sample." in comparison.notes


def test_batches_of_unknown_size_are_compared_with_a_warning():
    unknown = replace(stalling(), steps=tuple(msgspec.structs.replace(s, samples=None) for s in stalling().steps))
    comparison = compare(unknown, stalling())
    assert measure(comparison, "rate").unit == "batches/s"
    assert any(note.startswith("Samples were not counted") for note in comparison.notes)


def test_a_short_run_is_not_judged():
    comparison = compare(torch_run(batches=30), healthy())
    assert comparison.answer == "inconclusive"
    assert comparison_sentence(comparison) == "Inconclusive: too little was recorded to distinguish the runs."
    assert any("first run is too short" in note for note in comparison.notes)


def test_loaders_are_matched_by_name_and_a_mismatch_is_noted():
    assert not any("Different loaders" in note for note in compare(stalling(), healthy()).notes)
    other = compare(stalling(), torch_run(name="other"))
    assert "Different loaders: train and other." in other.notes


def test_a_recording_without_steps_is_refused_with_a_reason():
    with pytest.raises(RecordingError, match="the second recording has no steps"):
        compare(stalling(), empty())
    with pytest.raises(RecordingError, match="the first recording has no steps"):
        compare(empty(), stalling())


def test_terminal_and_markdown_have_the_same_content():
    comparison = compare(stalling(), healthy())
    page = io.StringIO()
    Console(width=80, file=page).print(comparison_text(comparison))
    shown, document = page.getvalue(), comparison_markdown(comparison)
    for name in ("rate, samples/s", "share waiting", "wait", "step: forward", "worker"):
        assert name in shown
        assert f"| {name} |" in document
    assert "times per batch" in shown
    assert "| times per batch |" in document
    for text in (shown, document):
        assert text.startswith("Better: b runs at 2.")
        assert "One run each" in text


def test_phase_names_are_escaped_in_markdown():
    steps = tuple(msgspec.structs.replace(step, phases={"<b>|": 0.01}) for step in stalling().steps)
    recording = replace(stalling(), steps=steps)
    assert "step: &lt;b&gt;\\|" in comparison_markdown(compare(recording, recording))


def test_the_json_has_every_measure_with_its_ratio():
    document = json.loads(json.dumps(comparison_document(compare(healthy(), stalling())), allow_nan=False))
    assert document["answer"] == "worse"
    assert document["measures"][0]["name"] == "rate"
    assert document["measures"][0]["ratio"] == pytest.approx(0.4, rel=0.05)
    assert document["measures"][1]["ratio"] is None  # the first run does not wait


# -- several runs, and the gate of CI ------------------------------------------------------------------------------


def varied(rng, scale, steps=300, run_spread=0.01):
    """Return a run whose steps vary by 30%, and its mean by 1% from run to run."""
    recording = torch_run(batches=steps, workers=1, fetch_s=0.01)
    scale *= rng.lognormvariate(0, run_spread)
    timed = [
        msgspec.structs.replace(step, wait_s=0.1 * scale * rng.lognormvariate(0, 0.3), step_s=0.05 * scale)
        for step in recording.steps
    ]
    return replace(recording, steps=tuple(timed), fetches=())


def gated(seed, slowdown, share=0.05):
    rng = random.Random(seed)
    before, after = ([varied(rng, scale) for _ in range(5)] for scale in (1.0, 1 / (1 - slowdown)))
    return gate(compare(before, after), share).answer


def test_a_slowdown_by_5_percent_is_caught_in_19_of_20_trials():
    assert sum(gated(seed, 0.05) == "slower" for seed in range(20)) >= 19


def test_at_most_one_of_20_trials_without_a_change_fails():
    answers = [gated(100 + seed, 0.0) for seed in range(20)]
    assert answers.count("slower") <= 1
    assert answers.count("passed") >= 15


def rated(low, high):
    rate = Measure(name="rate", unit="samples/s", a=1.0, b=1.0, low=low, high=high, answer="inconclusive")
    return Comparison(measures=(rate,), notes=())


@pytest.mark.parametrize(
    ("low", "high", "answer"),
    [
        (0.96, 1.02, "passed"),
        (0.96, 0.98, "passed"),  # slower, but not by 5%
        (1.20, 1.40, "passed"),
        (0.80, 0.90, "slower"),
        (0.94, 0.99, "slower"),  # slower, and 5% is not excluded
        (0.94, 1.01, "inconclusive"),
        (None, None, "inconclusive"),
    ],
)
def test_the_gate_goes_by_the_interval(low, high, answer):
    assert gate(rated(low, high), 0.05).answer == answer


def test_the_variation_between_runs_widens_the_interval():
    rng = random.Random(5)
    alike, varying = ([varied(rng, 1.0, run_spread=spread) for _ in range(3)] for spread in (0.0, 0.2))
    width = [rate.high - rate.low for rate in (compare(alike, runs).measures[0] for runs in (alike, varying))]
    assert width[1] > 2 * width[0]


def test_the_names_of_the_files_are_in_sentence_and_table():
    comparison = compare(stalling(), healthy(), ("main.jsonl", "branch.jsonl"))
    assert "branch.jsonl runs at" in comparison_sentence(comparison)
    assert "| main.jsonl | branch.jsonl | ratio |" in comparison_markdown(comparison)
    assert comparison_document(comparison)["names"] == ["main.jsonl", "branch.jsonl"]


def test_no_measure_of_runs_that_vary_is_called_different():
    rng = random.Random(7)
    sides = ([varied(rng, 1.0, run_spread=0.3) for _ in range(4)] for _ in range(2))
    found = compare(*sides).measures
    assert {each.name: each.answer for each in found if each.name in ("rate", "wait", "step")} == {
        "rate": "inconclusive",
        "wait": "inconclusive",
        "step": "inconclusive",
    }

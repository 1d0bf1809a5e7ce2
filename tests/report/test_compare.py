"""Two recordings: what may be claimed of their difference, and what not."""

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
    compare,
    comparison_document,
    comparison_markdown,
    comparison_sentence,
    comparison_text,
)


def noisy(seed, scale=1.0, steps=300):
    """A run without workers whose waits are random."""
    recording = torch_run(batches=steps, workers=1, fetch_s=0.01)
    dice = random.Random(seed)
    waits = [msgspec.structs.replace(step, wait_s=scale * dice.expovariate(10)) for step in recording.steps]
    return replace(recording, steps=tuple(waits), fetches=())


def measure(comparison, name):
    return next(found for found in comparison.measures if found.name == name)


def test_a_run_with_enough_supply_is_better_and_the_wait_tells_why():
    comparison = compare(stalling(), healthy())
    rate = measure(comparison, "rate")
    assert comparison.answer == "better"
    assert rate.ratio == pytest.approx(20 / 8, rel=0.05)  # 1/C instead of W/S
    assert rate.low <= rate.ratio <= rate.high
    assert measure(comparison, "share waiting").answer == "better"
    assert measure(comparison, "worker").ratio == pytest.approx(0.13)
    assert measure(comparison, "step: forward").answer == "inconclusive"  # the same in both


def test_the_other_way_round_it_is_worse():
    assert compare(healthy(), stalling()).answer == "worse"


def test_a_run_compared_with_itself_is_inconclusive_in_everything():
    comparison = compare(stalling(), stalling())
    assert {found.answer for found in comparison.measures} == {"inconclusive"}
    assert comparison_sentence(comparison).startswith("Inconclusive: b runs at 1.00× the rate of a")


def test_two_runs_of_the_same_noise_are_inconclusive_and_of_half_the_noise_better():
    assert compare(noisy(1), noisy(2)).answer == "inconclusive"
    assert compare(noisy(1), noisy(2, scale=0.4)).answer == "better"


def seldom_looked_at(seed):
    """Phases of random length, looked at in one step of sixteen."""
    recording, dice = torch_run(batches=1600, workers=1, fetch_s=0.01), random.Random(seed)
    known = [
        {"phases": {"forward": dice.expovariate(50)}} if at % 16 == 5 else {"phases": {}, "profiled": False}
        for at in range(1600)
    ]
    steps = [msgspec.structs.replace(step, **more) for step, more in zip(recording.steps, known, strict=True)]
    return replace(recording, steps=tuple(steps))


def test_a_phase_that_was_seldom_looked_at_is_as_long_as_it_was_then_and_no_surer_than_that():
    forward = measure(compare(seldom_looked_at(1), seldom_looked_at(2)), "step: forward")
    assert forward.a == pytest.approx(0.02, rel=0.3)
    assert forward.high / forward.low > 1.4  # of a hundred looks each: 1.96 times the root of 2/100, both ways, is 1.7


def test_different_batch_sizes_are_compared_in_samples():
    small, large = torch_run(samples=8, fetch_s=0.3), torch_run(samples=24, fetch_s=0.9)
    comparison = compare(small, large)
    assert measure(comparison, "rate").unit == "samples/s"
    assert measure(comparison, "worker").unit == "s/sample"
    assert measure(comparison, "worker").ratio == pytest.approx(1.0)
    assert "Batches of 8 and 24: times are per sample." in comparison.notes


def test_batches_without_a_known_size_are_compared_as_batches_with_a_warning():
    unknown = replace(stalling(), steps=tuple(msgspec.structs.replace(s, samples=None) for s in stalling().steps))
    comparison = compare(unknown, stalling())
    assert measure(comparison, "rate").unit == "batches/s"
    assert any(note.startswith("Samples were not counted") for note in comparison.notes)


def test_a_short_run_is_not_judged():
    comparison = compare(torch_run(batches=30), healthy())
    assert comparison.answer == "inconclusive"
    assert comparison_sentence(comparison) == "Inconclusive: too little was recorded to tell the runs apart."
    assert any("first run is too short" in note for note in comparison.notes)


def test_loaders_are_matched_by_name_and_a_mismatch_is_told():
    assert not any("Different loaders" in note for note in compare(stalling(), healthy()).notes)
    other = compare(stalling(), torch_run(name="other"))
    assert "Different loaders: train and other." in other.notes


def test_a_recording_without_steps_is_refused_with_a_reason():
    with pytest.raises(RecordingError, match="the second recording has no steps"):
        compare(stalling(), empty())
    with pytest.raises(RecordingError, match="the first recording has no steps"):
        compare(empty(), stalling())


def test_the_terminal_and_the_markdown_say_the_same():
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


def test_programs_get_every_measure_with_its_ratio_as_json():
    document = json.loads(json.dumps(comparison_document(compare(healthy(), stalling())), allow_nan=False))
    assert document["answer"] == "worse"
    assert document["measures"][0]["name"] == "rate"
    assert document["measures"][0]["ratio"] == pytest.approx(0.4, rel=0.05)
    assert document["measures"][1]["ratio"] is None  # there was no waiting in the first

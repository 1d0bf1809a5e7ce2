"""Key numbers of a run, the parts of the mean step, and its settings."""

from itertools import pairwise

import pytest
from tests.support.report_runs import empty, hops_run, stalling, torch_run

from penstock.recording.format import LoaderLine, LoaderSetting, RunLine, StepLine
from penstock.recording.reader import Recording
from penstock.report.run_summary import (
    MAX_PHASES,
    REST,
    main_evidence,
    place_phases,
    run_numbers,
    setting_rows,
    step_parts,
    timed_steps_note,
)


def recording_of(*steps, settings=None):
    return Recording(run=RunLine(), loaders={0: LoaderLine(loader=0, settings=settings or {})}, steps=steps)


def step(batch, **fields):
    return StepLine(**{"loader": 0, "batch": batch, "at_s": batch * 1.0, "wait_s": 0.2, "step_s": 0.8, **fields})


def test_the_rate_includes_waiting_and_the_time_of_the_step_does_not():
    found = run_numbers(main_evidence(stalling()))
    assert found.samples_per_s == pytest.approx(24 * 8 / 1.0, rel=0.03)  # W batches of 24 every S seconds
    assert found.step_s == pytest.approx(0.05)
    assert found.wait_share == pytest.approx(0.6, abs=0.02)
    assert found.startup_s == pytest.approx(1.0)


def test_what_was_not_counted_is_none():
    found = run_numbers(main_evidence(recording_of(step(0), step(1))))
    assert (found.samples_per_s, found.gpu) == (None, None)
    assert found.batches_per_s == pytest.approx(1.0)


def test_without_steps_there_is_no_evidence():
    assert main_evidence(empty()) is None


def test_the_parts_of_a_step_lie_end_to_end_and_add_up_to_it():
    found = step_parts(main_evidence(stalling()))
    assert [(part.name, part.depth) for part in found] == [
        ("wait", 0), ("forward", 0), ("backward", 0), ("sync", 1), ("optimizer", 0), (REST, 0),
    ]  # fmt: skip
    assert sum(part.share for part in found if part.depth == 0) == pytest.approx(1.0)
    outermost = [part for part in found if part.depth == 0]
    for before, after in pairwise(outermost):
        assert after.start_s == pytest.approx(before.start_s + before.seconds)
    assert next(part for part in found if part.name == "forward").device_s == pytest.approx(0.014)


def test_the_sampler_is_part_of_the_wait_and_evaluation_is_no_part_of_a_step():
    phases = {"sampler": 0.1, "forward": 0.3, "evaluation": 0.4}
    found = step_parts(main_evidence(recording_of(step(0), step(1, phases=phases), step(2, phases=phases))))
    assert [(part.name, part.depth, round(part.seconds, 3)) for part in found] == [
        ("wait", 0, 0.2), ("sampler", 1, 0.1), ("forward", 0, 0.3), (REST, 0, 0.1),
    ]  # fmt: skip


def test_steps_without_timed_phases_do_not_reduce_the_means_and_phases_of_all_steps_are_exact():
    profiled = {"forward": 0.4, "forward/gc": 0.2, "log": 0.1}
    steps = [
        step(0),
        step(1, phases=profiled),
        *(step(batch, profiled=False, phases={"gc": 0.1}) for batch in (2, 3, 4)),
    ]
    evidence = main_evidence(recording_of(*steps))
    assert [(part.name, part.depth, round(part.seconds, 4)) for part in step_parts(evidence)] == [
        ("wait", 0, 0.2), ("forward", 0, 0.4), ("gc", 1, 0.125), ("log", 0, 0.025), (REST, 0, 0.375),
    ]  # fmt: skip
    assert timed_steps_note(evidence) == "Phases were timed in 1 of 4 steps."


def test_a_pause_inside_a_phase_is_no_part_of_that_phase():
    phases = {"forward": 0.2, "save/log": 0.1, "save/checkpoint": 0.3, "save/checkpoint/log": 0.1, "save": 0.5}
    found = step_parts(main_evidence(recording_of(step(0), step(1, phases=phases))))
    assert [(part.name, part.depth, round(part.seconds, 4)) for part in found] == [
        ("wait", 0, 0.2), ("forward", 0, 0.2), ("save", 0, 0.2), ("log", 1, 0.1), (REST, 0, 0.1),
    ]  # fmt: skip


def test_steps_whose_events_were_not_read_do_not_reduce_the_device_times():
    host, device = {"forward": 0.1}, {"forward": 0.4}
    steps = [step(0), *(step(batch, phases=host, device_phases=device if batch % 2 else {}) for batch in range(1, 9))]
    found = {part.name: part.device_s for part in step_parts(main_evidence(recording_of(*steps)))}
    assert found == {"wait": None, "forward": pytest.approx(0.4), REST: None}


def test_a_phase_that_occurs_only_in_steps_without_timed_phases_is_included():
    steps = [step(0), step(1, phases={"forward": 0.4}), step(2, profiled=False, phases={"log": 0.2})]
    assert [(part.name, round(part.seconds, 4)) for part in step_parts(main_evidence(recording_of(*steps)))] == [
        ("wait", 0.2), ("forward", 0.4), ("log", 0.1), (REST, 0.3),
    ]  # fmt: skip


def test_there_is_no_note_if_all_steps_were_timed():
    assert timed_steps_note(main_evidence(stalling())) == ""


def test_a_setting_is_changed_only_if_both_values_are_known_and_differ():
    settings = {
        "num_workers": LoaderSetting(requested=32, in_force=4),
        "pin_memory": LoaderSetting(in_force=False),
        "timeout": LoaderSetting(requested=5),
        "batch_size": LoaderSetting(requested=8, in_force=8),
    }
    rows = setting_rows(recording_of(settings=settings))
    assert [(row.name, row.changed) for row in rows] == [
        ("num_workers", True), ("pin_memory", False), ("timeout", False), ("batch_size", False),
    ]  # fmt: skip
    assert (rows[1].requested, rows[2].in_force) == ("–", "–")


def test_a_very_long_setting_is_cut_with_an_ellipsis():
    (row,) = setting_rows(recording_of(settings={"x": LoaderSetting(requested="y" * 5000)}))
    assert len(row.requested) < 200
    assert row.requested.endswith("…")


def test_gpu_utilisation_is_the_mean_of_all_samples():
    assert run_numbers(main_evidence(hops_run())).gpu == pytest.approx(0.8)
    assert run_numbers(main_evidence(torch_run(batches=20))).gpu is not None


def test_a_phase_with_a_slash_in_its_name_is_not_lost():
    phases = {"a/b": 0.1, "a/b/c": 0.05}
    found = step_parts(main_evidence(recording_of(step(0), step(1, phases=phases), step(2, phases=phases))))
    assert [(part.name, part.depth) for part in found] == [("wait", 0), ("a/b", 0), ("c", 1), (REST, 0)]


def test_nested_phases_begin_where_their_outer_phase_begins():
    phases = {"a/b/c": 0.1, "a/b": 0.2, "a/d": 0.1, "a": 0.4, "e": 0.1}
    assert [(path, depth, round(start_s, 3)) for path, depth, start_s, _ in place_phases(phases, 1.0)] == [
        ("a", 0, 1.0), ("a/b", 1, 1.0), ("a/b/c", 2, 1.0), ("a/d", 1, 1.2), ("e", 0, 1.4),
    ]  # fmt: skip


def test_phases_with_a_name_per_step_are_limited():
    steps = [step(number, phases={f"step {number}": 0.001, "forward": 0.5}) for number in range(500)]
    found = step_parts(main_evidence(recording_of(*steps)))
    assert len(found) <= MAX_PHASES + 2
    assert "forward" in [part.name for part in found]
    assert found[-1].name == REST


def test_very_many_slashes_and_levels_are_handled_quickly():
    deep = {"/".join("a" * depth): 0.001 for depth in range(1, 900)}
    assert len(list(place_phases(deep, 0.0))) == 899
    assert len(list(place_phases({"/" * 500_000: 0.1}, 0.0))) == 1

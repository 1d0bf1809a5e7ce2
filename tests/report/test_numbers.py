"""Key numbers of a run, and where the mean step went."""

from itertools import pairwise

import pytest
from tests.support.report_runs import empty, hops_run, stalling, torch_run

from penstock.recording.format import LoaderLine, LoaderSetting, RunLine, StepLine
from penstock.recording.reader import Recording
from penstock.report.numbers import MOST_PHASES, REST, lay_out, looked_note, main_evidence, numbers, parts, setting_rows


def recording_of(*steps, settings=None):
    return Recording(run=RunLine(), loaders={0: LoaderLine(loader=0, settings=settings or {})}, steps=steps)


def step(batch, **fields):
    return StepLine(**{"loader": 0, "batch": batch, "at_s": batch * 1.0, "wait_s": 0.2, "step_s": 0.8, **fields})


def test_the_rate_counts_waiting_and_the_step_alone_does_not():
    found = numbers(main_evidence(stalling()))
    assert found.samples_per_s == pytest.approx(24 * 8 / 1.0, rel=0.03)  # W batches of 24 every S seconds
    assert found.step_s == pytest.approx(0.05)
    assert found.wait_share == pytest.approx(0.6, abs=0.02)
    assert found.startup_s == pytest.approx(1.0)


def test_what_nobody_counted_is_none():
    found = numbers(main_evidence(recording_of(step(0), step(1))))
    assert (found.samples_per_s, found.gpu) == (None, None)
    assert found.batches_per_s == pytest.approx(1.0)


def test_without_steps_there_is_no_evidence():
    assert main_evidence(empty()) is None


def test_the_parts_of_a_step_lie_end_to_end_and_make_up_the_whole():
    found = parts(main_evidence(stalling()))
    assert [(part.name, part.depth) for part in found] == [
        ("wait", 0), ("forward", 0), ("backward", 0), ("sync", 1), ("optimizer", 0), (REST, 0),
    ]  # fmt: skip
    assert sum(part.share for part in found if part.depth == 0) == pytest.approx(1.0)
    tops = [part for part in found if part.depth == 0]
    for before, after in pairwise(tops):
        assert after.start_s == pytest.approx(before.start_s + before.seconds)
    assert next(part for part in found if part.name == "forward").device_s == pytest.approx(0.014)


def test_the_sampler_lies_in_the_wait_and_evaluation_is_no_part_of_a_step():
    phases = {"sampler": 0.1, "forward": 0.3, "evaluation": 0.4}
    found = parts(main_evidence(recording_of(step(0), step(1, phases=phases), step(2, phases=phases))))
    assert [(part.name, part.depth, round(part.seconds, 3)) for part in found] == [
        ("wait", 0, 0.2), ("sampler", 1, 0.1), ("forward", 0, 0.3), (REST, 0, 0.1),
    ]  # fmt: skip


def test_steps_that_were_not_looked_at_do_not_thin_out_the_phases_and_what_all_have_is_exact():
    profiled = {"forward": 0.4, "forward/gc": 0.2, "log": 0.1}
    steps = [step(0), step(1, phases=profiled), *(step(at, profiled=False, phases={"gc": 0.1}) for at in (2, 3, 4))]
    evidence = main_evidence(recording_of(*steps))
    assert [(part.name, part.depth, round(part.seconds, 4)) for part in parts(evidence)] == [
        ("wait", 0, 0.2), ("forward", 0, 0.4), ("gc", 1, 0.125), ("log", 0, 0.025), (REST, 0, 0.375),
    ]  # fmt: skip
    assert looked_note(evidence) == "Phases were looked at in 1 of 4 steps."


def test_a_pause_inside_a_phase_is_no_part_of_that_phase_either():
    phases = {"forward": 0.2, "save/log": 0.1, "save/checkpoint": 0.3, "save/checkpoint/log": 0.1, "save": 0.5}
    found = parts(main_evidence(recording_of(step(0), step(1, phases=phases))))
    assert [(part.name, part.depth, round(part.seconds, 4)) for part in found] == [
        ("wait", 0, 0.2), ("forward", 0, 0.2), ("save", 0, 0.2), ("log", 1, 0.1), (REST, 0, 0.1),
    ]  # fmt: skip


def test_steps_whose_events_were_not_read_do_not_thin_out_the_devices_times():
    host, device = {"forward": 0.1}, {"forward": 0.4}
    steps = [step(0), *(step(at, phases=host, device_phases=device if at % 2 else {}) for at in range(1, 9))]
    found = {part.name: part.device_s for part in parts(main_evidence(recording_of(*steps)))}
    assert found == {"wait": None, "forward": pytest.approx(0.4), REST: None}


def test_a_phase_that_only_steps_had_at_which_nobody_looked_is_there():
    steps = [step(0), step(1, phases={"forward": 0.4}), step(2, profiled=False, phases={"log": 0.2})]
    assert [(part.name, round(part.seconds, 4)) for part in parts(main_evidence(recording_of(*steps)))] == [
        ("wait", 0.2), ("forward", 0.4), ("log", 0.1), (REST, 0.3),
    ]  # fmt: skip


def test_where_all_were_looked_at_nothing_is_said_of_it():
    assert looked_note(main_evidence(stalling())) == ""


def test_a_setting_is_changed_only_where_both_sides_are_known_and_differ():
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


def test_a_very_long_setting_is_cut_visibly():
    (row,) = setting_rows(recording_of(settings={"x": LoaderSetting(requested="y" * 5000)}))
    assert len(row.requested) < 200
    assert row.requested.endswith("…")


def test_gpu_utilisation_is_the_mean_of_what_was_seen():
    assert numbers(main_evidence(hops_run())).gpu == pytest.approx(0.8)
    assert numbers(main_evidence(torch_run(batches=20))).gpu is not None


def test_a_phase_with_a_slash_in_its_name_is_not_lost():
    phases = {"a/b": 0.1, "a/b/c": 0.05}
    found = parts(main_evidence(recording_of(step(0), step(1, phases=phases), step(2, phases=phases))))
    assert [(part.name, part.depth) for part in found] == [("wait", 0), ("a/b", 0), ("c", 1), (REST, 0)]


def test_phases_that_lie_in_one_another_are_laid_from_their_outer_ones_start():
    phases = {"a/b/c": 0.1, "a/b": 0.2, "a/d": 0.1, "a": 0.4, "e": 0.1}
    assert [(path, depth, round(start_s, 3)) for path, depth, start_s, _ in lay_out(phases, 1.0)] == [
        ("a", 0, 1.0), ("a/b", 1, 1.0), ("a/b/c", 2, 1.0), ("a/d", 1, 1.2), ("e", 0, 1.4),
    ]  # fmt: skip


def test_a_name_per_step_does_not_make_a_table_per_step():
    steps = [step(number, phases={f"step {number}": 0.001, "forward": 0.5}) for number in range(500)]
    found = parts(main_evidence(recording_of(*steps)))
    assert len(found) <= MOST_PHASES + 2
    assert "forward" in [part.name for part in found]
    assert found[-1].name == REST


def test_endless_slashes_and_depths_take_no_endless_time():
    deep = {"/".join("a" * depth): 0.001 for depth in range(1, 900)}
    assert len(list(lay_out(deep, 0.0))) == 899
    assert len(list(lay_out({"/" * 500_000: 0.1}, 0.0))) == 1

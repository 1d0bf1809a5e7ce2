"""What the fault bench makes of verdicts, and that one case goes all the way through a child of its own."""

import math
import subprocess
import sys

import msgspec
import pytest
from benchmarks.faults.score import lines, matrix
from benchmarks.faults.verdict import Verdict
from tests.support.faults import Outcome

from penstock.recording.reader import load

RIGHT = {"fault": "slow_worker", "severity": "mild", "seed": 0, "expect": "lagging_worker", "named": "lagging_worker"}
RIGHT |= {"verdict": "findings", "findings": 1, "predicted": 0.5, "actual": 0.5, "confidence": 0.9, "seconds": 1.0}
QUIET = {"fault": "healthy", "expect": None, "named": None, "verdict": "healthy", "findings": 0}
QUIET |= {"predicted": None, "actual": None}


def said(**changes):
    return Verdict(**RIGHT | changes)


def test_a_fault_is_right_when_its_rule_is_named_first():
    assert said().right
    assert not said(named="decode_bound").right
    assert not said(named=None, findings=0, verdict="undetermined").right


def test_a_quiet_run_is_right_only_when_it_is_called_healthy():
    assert said(**QUIET).right
    assert not said(**QUIET | {"verdict": "undetermined"}).right
    assert not said(**QUIET | {"named": "decode_bound", "verdict": "findings", "findings": 1}).right


def test_the_error_of_a_gain_is_in_parts_of_the_measured_one():
    assert said(predicted=0.6, actual=0.5).error == pytest.approx(0.2)
    assert said(predicted=0.6, actual=-0.1).error == math.inf
    assert said(predicted=0.6, named="decode_bound").error is None
    assert said(**QUIET).error is None


def test_the_matrix_counts_what_each_fault_was_taken_for():
    found = matrix([said(), said(named="decode_bound"), said(seed=1), said(**QUIET)])
    assert found == {"slow_worker": {"lagging_worker": 2, "decode_bound": 1}, "healthy": {"(nothing)": 1}}


def test_the_figures_are_reached_by_right_names_and_near_gains():
    figures = list(lines([said(), said(**QUIET)]))
    assert [(line.ratio, line.reached) for line in figures] == [(1.0, True), (0, True), (1.0, True)]


def test_the_figures_are_missed_by_wrong_names_noise_and_far_gains():
    noise = said(**QUIET | {"findings": 2, "verdict": "findings", "named": "decode_bound"})
    figures = list(lines([said(predicted=0.9), said(named="decode_bound"), noise]))
    assert [(line.ratio, line.reached) for line in figures] == [(0.5, False), (2, False), (0.0, False)]


def test_no_figure_is_made_of_no_runs():
    assert [line.what for line in lines([said(**QUIET)])] == ["findings where nothing is wrong"]


def test_one_case_runs_in_a_child_and_leaves_a_recording(tmp_path):
    record = tmp_path / "run.jsonl"
    asked = ["slow_worker", "--folder", tmp_path, "--record", record, "--severity", "mild", "--steps", "6"]
    command = [sys.executable, "-m", "benchmarks.faults.single_run", *map(str, asked)]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=100, check=True)
    outcome = msgspec.json.decode(done.stdout.splitlines()[-1], type=Outcome)
    assert outcome.steps == 6
    recorded = load(record)
    assert [step.worker for step in recorded.steps] == [0, 1, 2, 0, 1, 2]
    assert recorded.end is not None

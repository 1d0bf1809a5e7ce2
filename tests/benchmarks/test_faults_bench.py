"""The scores of `make bench-faults`, and one case that runs in a process of its own."""

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
HEALTHY = {"fault": "healthy", "expect": None, "named": None, "verdict": "healthy", "findings": 0}
HEALTHY |= {"predicted": None, "actual": None}


def verdict(**changes):
    return Verdict(**RIGHT | changes)


def test_a_fault_is_right_when_its_rule_is_named_first():
    assert verdict().right
    assert not verdict(named="decode_bound").right
    assert not verdict(named=None, findings=0, verdict="undetermined").right


def test_a_run_without_a_fault_is_right_only_if_it_is_called_healthy():
    assert verdict(**HEALTHY).right
    assert not verdict(**HEALTHY | {"verdict": "undetermined"}).right
    assert not verdict(**HEALTHY | {"named": "decode_bound", "verdict": "findings", "findings": 1}).right


def test_the_error_of_a_gain_is_relative_to_the_measured_gain():
    assert verdict(predicted=0.6, actual=0.5).error == pytest.approx(0.2)
    assert verdict(predicted=0.6, actual=-0.1).error == math.inf
    assert verdict(predicted=0.6, named="decode_bound").error is None
    assert verdict(**HEALTHY).error is None


def test_the_matrix_counts_the_first_findings_of_each_fault():
    found = matrix([verdict(), verdict(named="decode_bound"), verdict(seed=1), verdict(**HEALTHY)])
    assert found == {"slow_worker": {"lagging_worker": 2, "decode_bound": 1}, "healthy": {"(nothing)": 1}}


def test_targets_are_reached_by_right_rules_and_near_gains():
    figures = list(lines([verdict(), verdict(**HEALTHY)]))
    assert [(line.ratio, line.reached) for line in figures] == [(1.0, True), (0, True), (1.0, True)]


def test_targets_are_missed_by_wrong_rules_false_findings_and_far_gains():
    false_findings = verdict(**HEALTHY | {"findings": 2, "verdict": "findings", "named": "decode_bound"})
    figures = list(lines([verdict(predicted=0.9), verdict(named="decode_bound"), false_findings]))
    assert [(line.ratio, line.reached) for line in figures] == [(0.5, False), (2, False), (0.0, False)]


def test_a_score_without_runs_is_left_out():
    assert [line.what for line in lines([verdict(**HEALTHY)])] == ["findings in runs without a fault"]


def test_a_case_runs_in_a_child_process_and_leaves_a_recording(tmp_path):
    record = tmp_path / "run.jsonl"
    arguments = ["slow_worker", "--folder", tmp_path, "--record", record, "--severity", "mild", "--steps", "6"]
    command = [sys.executable, "-m", "benchmarks.faults.single_run", *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=100, check=True)
    outcome = msgspec.json.decode(done.stdout.splitlines()[-1], type=Outcome)
    assert outcome.steps == 6
    recorded = load(record)
    assert [step.worker for step in recorded.steps] == [0, 1, 2, 0, 1, 2]
    assert recorded.end is not None

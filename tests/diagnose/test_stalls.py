"""Evidence is gathered while the loop waits: slow first steps, validations and the ends of epochs do not count."""

import numpy as np
import pytest
from tests.support.timm_recordings import SLOW_STEP, TimmRun

from penstock.diagnose.evidence.evidence import gather
from penstock.diagnose.evidence.loop import count_warm_up
from penstock.diagnose.verdict import diagnose


def training_evidence(recording):
    return next(found for found in gather(recording) if found.loader.loader == 0)


def test_decoding_limits_a_run_whose_cores_are_full_whenever_it_waits():
    recording = TimmRun().recording()
    all_lines = [sum(process.cpu for process in line.processes) for line in recording.system]
    evidence = training_evidence(recording)
    assert 0.3 < evidence.loop.wait_share < 0.54
    assert np.mean(all_lines) < 0.85 * 16  # the slow step and the validations count here
    assert evidence.workers.fetch_cores > 15
    found = diagnose(recording)
    assert found.findings[0].rule == "decode_bound"
    assert found.findings[0].gain > 0.5


def test_a_slow_first_step_is_not_a_synchronising_call_in_every_step():
    recording = TimmRun().recording()
    slow = [step for step in recording.steps if step.step_s > 1 and step.loader == 0]
    assert len(slow) == 1
    assert slow[0].phases["sync"] > 5  # in the mean over all steps this would be 20 ms of 90
    assert "host_sync" not in [finding.rule for finding in diagnose(recording).findings]


def test_the_first_steps_until_the_last_slow_one_are_warm_up():
    evidence = training_evidence(TimmRun().recording())
    assert [step.batch for step in evidence.loop.warm_up_steps] == list(range(1, SLOW_STEP + 1))
    assert {step.epoch for step in evidence.loop.warm_up_steps} == {0}


@pytest.mark.parametrize(
    ("busy_s", "steps"),
    [
        (np.full(100, 0.05), 0),
        (np.array([8.0, 5.0] + [0.05] * 98), 2),
        (np.array([0.05, 8.0] + [0.05] * 98), 2),
        (np.array(([0.05] * 9 + [0.5]) * 10), 0),  # every tenth step logs, later too
        (np.array([0.05] * 50 + [8.0] + [0.05] * 49), 0),  # in mid-run
        (np.array([8.0, 0.05]), 0),
    ],
)
def test_a_step_is_warm_up_only_at_the_start_and_if_later_steps_are_not_as_slow(busy_s, steps):
    assert count_warm_up(busy_s) == steps


def test_lines_on_the_machine_in_validations_do_not_count():
    recording = TimmRun().recording()
    evidence = training_evidence(recording)
    validation = [step for step in recording.steps if step.loader == 1]
    for line in evidence.machine.system:
        inside = sum(
            max(0.0, min(step.at_s + step.wait_s + step.step_s, line.at_s) - max(step.at_s, line.at_s - 1))
            for step in validation
        )
        assert inside < 0.25

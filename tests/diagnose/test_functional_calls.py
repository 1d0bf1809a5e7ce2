"""Losses and other operators that the loop calls itself belong to the step; what the script does itself does not."""

from dataclasses import replace

import pytest
from tests.support.simulated_recordings import TorchRun

from penstock.diagnose.verdict import diagnose, diagnose_run
from penstock.plan.from_diagnosis import plan_from_diagnosis
from penstock.recording.format import StackSamplesLine

PHASES = {"forward": 0.004, "backward": 0.004}
"""Phases of a step that takes 20 ms."""
LOSS = {
    "torch.nn.functional:mse_loss": 54,
    "torch.autograd.graph:_engine_run_backward": 25,
    "torch.nn.modules.conv:f": 8,
}


def sampled(functions, states=None):
    samples = sum(functions.values())
    line = StackSamplesLine(at_s=1.0, samples=samples, states=states or {"running": samples}, functions=functions)
    return replace(TorchRun(phases=PHASES).recording(), stack_samples=(line,))


def test_a_loss_that_the_loop_computes_itself_is_no_python_outside_the_model():
    recording = sampled({**LOSS, "__main__:train": 13})
    found = diagnose(recording)
    assert found.verdict == "healthy"
    (why,) = [cause.why for cause in found.rejected if cause.rule == "main_process_python"]
    assert "torch.nn.functional:mse_loss (54%)" in why
    assert "python" not in [change.name for change in plan_from_diagnosis(diagnose_run(recording)).changes]


def test_python_between_the_phases_is_named_with_the_part_that_is_not_torch():
    found = diagnose(sampled({"json.encoder:encode": 50, "torch.nn.functional:mse_loss": 50}))
    assert [finding.rule for finding in found.findings] == ["main_process_python"]
    assert found.findings[0].summary.startswith("10 ms of every step")  # 12 outside the phases, half of 20 in torch
    assert found.findings[0].gain == pytest.approx(0.0202 / 0.0102 - 1, rel=0.05)


def test_the_states_of_the_thread_say_what_it_does():
    found = diagnose(sampled({"mine:log": 100}, {"sleep": 60, "running": 30, "read": 10}))
    assert "sleeping 60%, running Python 30%, reading files 10%" in found.findings[0].evidence[1]

"""The diagnosis of real trainings on a GPU: shortened recordings of ResNet-50, 64 images per batch, 8 workers."""

import pytest
from tests.support.paths import DATA_FILES

from penstock.diagnose.verdict import diagnose
from penstock.recording.reader import load


def test_a_training_that_keeps_the_gpu_busy_is_healthy():
    assert diagnose(load(DATA_FILES / "resnet50_plain.jsonl.gz")).verdict == "healthy"


@pytest.mark.parametrize(
    ("run", "rule", "seconds"),
    [("item", "host_sync", 14.01), ("pageable", "pageable_copy", 13.28)],
)
def test_the_gain_of_a_finding_agrees_with_the_run_without_its_cause(run, rule, seconds):
    first = diagnose(load(DATA_FILES / f"resnet50_{run}.jsonl.gz")).findings[0]
    assert first.rule == rule
    assert 1 + first.gain == pytest.approx(seconds / 11.21, rel=0.2)  # 11.21 s: the plain run, without the cause


def test_phases_are_also_timed_on_the_clock_of_the_device():
    step = load(DATA_FILES / "resnet50_plain.jsonl.gz").steps[30]
    assert {"forward", "backward", "optimizer", "h2d"} <= step.device_phases.keys()
    assert step.device_phases["backward"] > step.phases["backward"] / 2

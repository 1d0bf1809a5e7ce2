"""Recordings of real trainings on a GPU (ResNet-50, 64 pictures a batch, 8 workers), cut short: what they say."""

import pytest
from tests.support.paths import DATA_FILES

from penstock.diagnose.verdict import diagnose
from penstock.recording.reader import load

DATA = DATA_FILES


def test_a_training_that_keeps_the_gpu_busy_is_healthy_though_its_host_waits_for_the_interpreter():
    assert diagnose(load(DATA / "resnet50_plain.jsonl.gz")).verdict == "healthy"


@pytest.mark.parametrize(
    ("run", "rule", "seconds"),
    [("item", "host_sync", 14.01), ("pageable", "pageable_copy", 13.28)],
)
def test_the_cause_is_named_and_its_gain_is_about_what_removing_it_gave(run, rule, seconds):
    first = diagnose(load(DATA / f"resnet50_{run}.jsonl.gz")).findings[0]
    assert first.rule == rule
    assert 1 + first.gain == pytest.approx(seconds / 11.21, rel=0.2)  # beside the plain run's 11.21 s


def test_the_device_has_a_clock_of_its_own():
    step = load(DATA / "resnet50_plain.jsonl.gz").steps[30]
    assert {"forward", "backward", "optimizer", "h2d"} <= step.device_phases.keys()
    assert step.device_phases["backward"] > step.phases["backward"] / 2

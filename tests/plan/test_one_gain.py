"""Over every recording of the repository: no gain exceeds the ceiling, and findings and plan give the same one."""

import pytest
from tests.support.all_recordings import NAMES, recording_named

from penstock.core.arrays import mean
from penstock.diagnose.verdict import diagnose_run
from penstock.plan.from_diagnosis import plan_from_diagnosis

OF_THE_STEP = ("cpu_quota", "memory_pressure", "regime_change", "small_batch")
"""Causes that make the step itself longer, besides those with `saved_s`: the step as it was is no limit."""


def judged(name):
    run = diagnose_run(recording_named(name))
    return run, run.steady_loader


@pytest.mark.parametrize("name", NAMES)
def test_no_finding_gains_more_than_the_step_alone_allows(name):
    run, loader = judged(name)
    evidence = loader.evidence
    step_s = mean(evidence.contention.step_s)
    for finding in run.diagnosis.findings:
        suspect = loader.suspects[finding.rule]
        left_s = step_s - (suspect.saved_s or 0.0)
        if finding.rule in OF_THE_STEP or finding.rule == "worker_startup" or left_s <= 0:
            continue
        assert 1 + finding.gain <= 1.001 * evidence.rate_cycle_s / left_s, finding.rule
        assert finding.gain_low <= finding.gain <= finding.gain_high


@pytest.mark.parametrize("name", NAMES)
def test_no_plan_expects_more_than_the_step_that_is_left_allows(name):
    run, _ = judged(name)
    plan = plan_from_diagnosis(run)
    of_step = sum(1 - 1 / (1 + change.gain) for change in plan.changes if change.scope == "step" and change.gain)
    if plan.samples_s is None or plan.planned_samples_s is None or plan.most_gain is None:
        return
    copies = any(change.name in ("pin_memory", "worker_threads") for change in plan.changes)
    assert plan.planned_samples_s >= 0.99 * plan.samples_s
    if not of_step and not copies:
        assert plan.planned_samples_s <= 1.001 * (1 + plan.most_gain) * plan.samples_s
    for change in plan.changes:
        if (
            change.scope == "dataloader"
            and change.gain is not None
            and change.name not in ("pin_memory", "worker_threads")
        ):
            assert change.gain <= plan.most_gain + 0.001, change.name


@pytest.mark.parametrize("name", NAMES)
def test_a_finding_and_the_change_that_removes_its_cause_have_the_same_gain(name):
    run, loader = judged(name)
    findings = {finding.rule: finding for finding in run.diagnosis.findings}
    for change in plan_from_diagnosis(run).changes:
        for rule, finding in findings.items():
            if loader.suspects[rule].settings.get(change.name, ...) == change.then:
                assert change.gain == finding.gain
                assert change.gain is not None


@pytest.mark.parametrize("name", NAMES)
def test_a_setting_that_a_finding_proposes_is_in_the_plan(name):
    run, loader = judged(name)
    plan = plan_from_diagnosis(run)
    for finding in run.diagnosis.findings:
        for setting, value in loader.suspects[finding.rule].settings.items():
            if setting == "persistent_workers":
                assert plan.dataloader[setting] is value

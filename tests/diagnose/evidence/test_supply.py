"""Supply and demand: a short run that lives on batches made ahead is judged by what a longer one will do."""

import numpy as np
import pytest
from tests.support.simulated_recordings import TorchRun
from tests.support.timm_recordings import SHORT_RUN, TimmRun

from penstock.core.arrays import mean
from penstock.diagnose.evidence.evidence import gather
from penstock.diagnose.verdict import diagnose, diagnose_run
from penstock.plan.from_diagnosis import plan_from_diagnosis


def training_evidence(recording):
    return next(found for found in gather(recording) if found.loader.loader == 0)


def short_run(steps):
    return TimmRun(epochs=1, steps=steps, step_s=0.06, slow_step_s=11.0, cpu_s=1.35).recording()


def test_the_stock_lasts_until_the_steps_have_taken_more_than_the_workers_made():
    supply = training_evidence(short_run(400)).supply
    loop = training_evidence(short_run(400)).loop
    assert supply.stock == 32
    waits = [index for index, wait_s in enumerate(loop.wait_s) if wait_s > 0.02]
    assert (
        waits[0] < supply.stock_steps < 2 * np.median(waits[:20])
    )  # batches come in bursts, so some waits come earlier
    assert not supply.lives_on_stock  # it shows its waits itself
    assert mean(loop.wait_s[150:300]) / mean(loop.wait_s[150:300] + loop.busy_s[150:300]) == pytest.approx(
        supply.shortage, abs=0.05
    )


@pytest.mark.parametrize("steps", [90, 110, 150])
def test_a_run_that_ends_before_its_stock_or_soon_after_is_judged_by_its_workers(steps):
    recording = short_run(steps)
    evidence = training_evidence(recording)
    assert evidence.loop.wait_share < 0.18
    longer = training_evidence(short_run(600)).loop
    waited = mean(longer.wait_s[200:500]) / mean(longer.wait_s[200:500] + longer.busy_s[200:500])
    assert evidence.starved_share == pytest.approx(waited, abs=0.05)
    found = diagnose(recording)
    assert [finding.rule for finding in found.findings] == ["decode_bound"]
    assert found.findings[0].gain == pytest.approx(1 / (1 - waited) - 1, abs=0.08)
    assert f"{evidence.starved_share:.0%} in a longer run" in found.sentence
    assert any("32 batches that were ready at the start last" in note for note in found.notes)
    assert any("would show it" in note for note in found.notes)


def test_the_plan_of_such_a_run_starts_from_the_rate_of_a_longer_one():
    run = diagnose_run(SHORT_RUN.recording())
    plan = plan_from_diagnosis(run)
    measured = 16 / run.steady_loader.evidence.loop.cycle_s
    assert plan.samples_s == pytest.approx(16 * 11.5, rel=0.05)
    assert plan.samples_s < 0.95 * measured


@pytest.mark.parametrize(
    "run",
    [
        TorchRun(),  # the workers are quicker than the steps
        TorchRun(count=30),
        TorchRun(workers=1, cpu_s=0.05, step_s=0.01),  # slow workers, and the waits show it
        TorchRun(workers=0, cpu_s=0.02),
        TorchRun(workers=8, cores=16, cpu_s=0.16, step_s=0.02, count=100),  # supply and demand are equal
    ],
)
def test_other_runs_do_not_live_on_stock(run):
    evidence = gather(run.recording())[0]
    assert not evidence.supply.lives_on_stock
    assert evidence.rate_cycle_s == evidence.loop.cycle_s

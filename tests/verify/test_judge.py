"""Judgements of runs whose steps are drawn from known distributions."""

import math

import numpy as np
import pytest

from penstock.core.plan import Change, Plan
from penstock.errors import RecordingError
from penstock.verify.judge import judge, predicted_gain
from penstock.verify.measures import RunMeasure

SEEDS = range(60)


def run(rng, *, rate=1.0, steps=200, workers=4, from_run_to_run=0.0):
    """Return a run of in-order delivery by workers that are too slow: one long wait per round, and noise."""
    pace = rate * math.exp(from_run_to_run * rng.standard_normal())
    waits = np.where(np.arange(steps) % workers == 0, 0.08, 0.004)
    seconds = waits * rng.lognormal(0.0, 0.4, steps) + 0.01 * rng.lognormal(0.0, 0.1, steps)
    return RunMeasure(np.full(steps, 16.0), seconds / pace, workers)


def runs(seed, count=2, **settings):
    rng = np.random.default_rng(seed)
    return [run(rng, **settings) for _ in range(count)]


def answers(after=1.0, count=2, **settings):
    """Return the answers for many seeds."""
    return [
        judge(runs((seed, 0), count, **settings), runs((seed, 1), count, rate=after, **settings)).answer
        for seed in SEEDS
    ]


def share(found, answer):
    return sum(each == answer for each in found) / len(found)


# -- properties ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("from_run_to_run", [0.0, 0.05])
@pytest.mark.parametrize("count", [2, 3])
def test_identical_distributions_are_inconclusive_for_nine_of_ten_seeds(count, from_run_to_run):
    assert share(answers(count=count, from_run_to_run=from_run_to_run), "inconclusive") >= 0.9


@pytest.mark.parametrize("workers", [0, 1, 8])
def test_identical_distributions_are_inconclusive_with_one_run_each(workers):
    found = [
        judge(
            [RunMeasure(a.numerator, a.denominator, workers)], [RunMeasure(b.numerator, b.denominator, workers)]
        ).answer
        for a, b in zip(runs(1, 60), runs(2, 60), strict=True)
    ]
    assert share(found, "inconclusive") >= 0.9


@pytest.mark.parametrize("size", [{"count": 2, "steps": 500}, {"count": 3, "steps": 200}])
def test_change_by_a_fifth_is_found(size):
    assert share(answers(1.2, **size), "better") >= 0.9
    assert share(answers(1 / 1.2, **size), "worse") >= 0.9


def test_increase_by_a_fifth_is_found_despite_variation_between_runs():
    assert share(answers(1.2, count=5, from_run_to_run=0.04), "better") >= 0.9


def test_interval_contains_the_true_ratio():
    held = 0
    for seed in SEEDS:
        found = judge(runs((seed, 0)), runs((seed, 1), rate=1.1))
        held += found.low <= 1.1 <= found.high
    assert held / len(SEEDS) >= 0.9


def test_runs_that_vary_strongly_are_inconclusive():
    steady = np.full(200, 0.01)
    before = [RunMeasure(np.ones(200), steady * pace, 2) for pace in (1.0, 1.5)]
    after = [RunMeasure(np.ones(200), steady * pace, 2) for pace in (0.9, 1.2)]
    assert judge(before, after).answer == "inconclusive"
    assert judge(before[:1], after[:1]).answer == "better"  # alone, each agrees with itself


def test_same_runs_give_the_same_judgement():
    assert judge(runs(1), runs(2)) == judge(runs(1), runs(2))


def test_rates_are_in_samples_for_any_batch_size():
    seconds = np.full(100, 0.01)
    found = judge([RunMeasure(np.full(100, 8.0), seconds, 1)], [RunMeasure(np.full(100, 16.0), seconds * 2, 1)])
    assert found.ratio == pytest.approx(1.0)
    assert found.answer == "inconclusive"


# -- the prediction ------------------------------------------------------------------------------------------------


def test_error_of_the_prediction_is_given():
    found = judge(runs(1), runs(1, rate=1.25), 0.5)
    assert (found.predicted_gain, found.gain) == (0.5, pytest.approx(0.25))
    assert found.model_error == pytest.approx(0.2)
    assert judge(runs(1), runs(1)).model_error is None


def plan(*changes, **fields):
    return Plan(source="recording", fingerprint={}, changes=changes, **fields)


def change(scope, gain):
    return Change(scope=scope, name="x", now=1, then=2, reason="because", gain=gain)


def test_predicted_gain_is_that_of_the_rates():
    rates = {"samples_s": 100.0, "planned_samples_s": 150.0}
    assert predicted_gain(plan(change("dataloader", 0.4), change("step", None), **rates)) == (pytest.approx(0.5), None)


def test_gain_of_step_changes_is_not_predicted_for_the_loader():
    rates = {"samples_s": 100.0, "planned_samples_s": 300.0}
    one = plan(change("step", 0.5), change("dataloader", 0.4), **rates)
    assert predicted_gain(one) == (0.4, None)
    gain, note = predicted_gain(
        plan(change("step", 0.5), change("dataloader", 0.4), change("dataloader", 0.3), **rates)
    )
    assert gain is None
    assert "changes to the step" in note


def test_plan_without_rates_predicts_nothing():
    assert predicted_gain(plan(change("dataloader", 0.4)))[0] is None


# -- what cannot be judged -----------------------------------------------------------------------------------------


def test_too_few_rounds_are_inconclusive_with_a_reason():
    found = judge(runs(1, steps=20), runs(2, rate=3.0))
    assert (found.answer, found.low, found.high) == ("inconclusive", None, None)
    assert "5 rounds of the workers" in found.notes[0]


def test_single_runs_are_noted():
    assert any("One run each" in note for note in judge(runs(1, 1), runs(2, 1)).notes)
    assert judge(runs(1), runs(2)).notes == ()


def run_with_last_step(numerator=1.0, denominator=1.0, steps=100):
    good = np.ones(steps)
    return RunMeasure(np.append(good, numerator), np.append(good, denominator), 1)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([], "no run after"),
        ([RunMeasure(np.array([]), np.array([]), 2)], "run 1 after has 0 steps"),
        ([run_with_last_step(), RunMeasure(np.ones(1), np.ones(1), 2)], "run 2 after has 1 step "),
        ([run_with_last_step(denominator=math.nan)], "not finite"),
        ([run_with_last_step(denominator=math.inf)], "not finite"),
        ([run_with_last_step(numerator=math.nan)], "not finite"),
        ([run_with_last_step(denominator=-1.0)], "without time"),
        ([RunMeasure(np.ones(9), np.zeros(9), 1)], "without time"),
        ([RunMeasure(np.zeros(9), np.ones(9), 1)], "without samples"),
    ],
)
def test_unusable_run_is_refused(bad, message):
    with pytest.raises(RecordingError, match=message):
        judge(runs(1), bad)

"""What may be claimed of runs before and after: on steps drawn from known distributions."""

import math

import numpy as np
import pytest

from penstock.core.plan import Change, Plan
from penstock.errors import RecordingError
from penstock.verify.judge import judge, predicted
from penstock.verify.measures import RunMeasure

SEEDS = range(60)


def run(dice, *, rate=1.0, steps=200, workers=4, from_run_to_run=0.0):
    """In-order delivery over workers that are behind: one long wait a round, and noise on everything."""
    pace = rate * math.exp(from_run_to_run * dice.standard_normal())
    waits = np.where(np.arange(steps) % workers == 0, 0.08, 0.004)
    seconds = waits * dice.lognormal(0.0, 0.4, steps) + 0.01 * dice.lognormal(0.0, 0.1, steps)
    return RunMeasure(np.full(steps, 16.0), seconds / pace, workers)


def runs(seed, count=2, **settings):
    dice = np.random.default_rng(seed)
    return [run(dice, **settings) for _ in range(count)]


def answers(after=1.0, count=2, **settings):
    """Over many seeds."""
    return [
        judge(runs((seed, 0), count, **settings), runs((seed, 1), count, rate=after, **settings)).answer
        for seed in SEEDS
    ]


def share(found, answer):
    return sum(each == answer for each in found) / len(found)


# -- properties ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("from_run_to_run", [0.0, 0.05])
@pytest.mark.parametrize("count", [2, 3])
def test_identical_distributions_are_inconclusive_in_nine_of_ten_seeds(count, from_run_to_run):
    assert share(answers(count=count, from_run_to_run=from_run_to_run), "inconclusive") >= 0.9


@pytest.mark.parametrize("workers", [0, 1, 8])
def test_so_they_are_with_one_run_each_whatever_the_workers(workers):
    found = [
        judge([RunMeasure(a.top, a.bottom, workers)], [RunMeasure(b.top, b.bottom, workers)]).answer
        for a, b in zip(runs(1, 60), runs(2, 60), strict=True)
    ]
    assert share(found, "inconclusive") >= 0.9


@pytest.mark.parametrize("size", [{"count": 2, "steps": 500}, {"count": 3, "steps": 200}])
def test_a_true_fifth_more_or_less_is_found(size):
    assert share(answers(1.2, **size), "better") >= 0.9
    assert share(answers(1 / 1.2, **size), "worse") >= 0.9


def test_a_fifth_more_is_found_beyond_what_differs_from_run_to_run_with_more_runs():
    assert share(answers(1.2, count=5, from_run_to_run=0.04), "better") >= 0.9


def test_the_interval_holds_the_truth():
    held = 0
    for seed in SEEDS:
        found = judge(runs((seed, 0)), runs((seed, 1), rate=1.1))
        held += found.low <= 1.1 <= found.high
    assert held / len(SEEDS) >= 0.9


def test_runs_that_disagree_among_themselves_prove_nothing():
    steady = np.full(200, 0.01)
    before = [RunMeasure(np.ones(200), steady * pace, 2) for pace in (1.0, 1.5)]
    after = [RunMeasure(np.ones(200), steady * pace, 2) for pace in (0.9, 1.2)]
    assert judge(before, after).answer == "inconclusive"
    assert judge(before[:1], after[:1]).answer == "better"  # alone, each agrees with itself


def test_the_same_runs_give_the_same_judgement():
    assert judge(runs(1), runs(2)) == judge(runs(1), runs(2))


def test_rates_are_in_samples_whatever_the_batch():
    seconds = np.full(100, 0.01)
    found = judge([RunMeasure(np.full(100, 8.0), seconds, 1)], [RunMeasure(np.full(100, 16.0), seconds * 2, 1)])
    assert found.ratio == pytest.approx(1.0)
    assert found.answer == "inconclusive"


# -- the prediction ------------------------------------------------------------------------------------------------


def test_prediction_and_measurement_stand_side_by_side():
    found = judge(runs(1), runs(1, rate=1.25), 0.5)
    assert (found.predicted_gain, found.gain) == (0.5, pytest.approx(0.25))
    assert found.model_error == pytest.approx(0.2)
    assert judge(runs(1), runs(1)).model_error is None


def plan(*changes, **fields):
    return Plan(source="recording", fingerprint={}, changes=changes, **fields)


def change(scope, gain):
    return Change(scope=scope, name="x", now=1, then=2, reason="because", gain=gain)


def test_a_plan_predicts_what_its_rates_say():
    rates = {"samples_s": 100.0, "planned_samples_s": 150.0}
    assert predicted(plan(change("dataloader", 0.4), change("step", None), **rates)) == (pytest.approx(0.5), None)


def test_what_changes_to_the_step_would_give_is_not_promised_by_the_loader():
    rates = {"samples_s": 100.0, "planned_samples_s": 300.0}
    one = plan(change("step", 0.5), change("dataloader", 0.4), **rates)
    assert predicted(one) == (0.4, None)
    gain, note = predicted(plan(change("step", 0.5), change("dataloader", 0.4), change("dataloader", 0.3), **rates))
    assert gain is None
    assert "changes to the step" in note


def test_a_plan_without_rates_predicts_nothing():
    assert predicted(plan(change("dataloader", 0.4)))[0] is None


# -- what cannot be judged -----------------------------------------------------------------------------------------


def test_too_few_rounds_are_inconclusive_with_the_reason_not_an_error():
    found = judge(runs(1, steps=20), runs(2, rate=3.0))
    assert (found.answer, found.low, found.high) == ("inconclusive", None, None)
    assert "5 rounds of the workers" in found.notes[0]


def test_one_run_each_is_told():
    assert any("One run each" in note for note in judge(runs(1, 1), runs(2, 1)).notes)
    assert judge(runs(1), runs(2)).notes == ()


def spoiled(top=1.0, bottom=1.0, steps=100):
    good = np.ones(steps)
    return RunMeasure(np.append(good, top), np.append(good, bottom), 1)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ([], "no run after"),
        ([RunMeasure(np.array([]), np.array([]), 2)], "run 1 after has 0 steps"),
        ([spoiled(), RunMeasure(np.ones(1), np.ones(1), 2)], "run 2 after has 1 step "),
        ([spoiled(bottom=math.nan)], "no number"),
        ([spoiled(bottom=math.inf)], "no number"),
        ([spoiled(top=math.nan)], "no number"),
        ([spoiled(bottom=-1.0)], "without time"),
        ([RunMeasure(np.ones(9), np.zeros(9), 1)], "without time"),
        ([RunMeasure(np.zeros(9), np.ones(9), 1)], "without samples"),
    ],
)
def test_what_is_no_measurement_is_refused_with_the_run_named(bad, words):
    with pytest.raises(RecordingError, match=words):
        judge(runs(1), bad)

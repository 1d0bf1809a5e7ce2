"""Schedules by count, by time, and by a share of the time for evaluations, on a clock that the test owns."""

import pytest
from torch import distributed

from penstock.errors import SettingError
from penstock.testing.clock import FakeClock
from penstock.train import EvaluationBudget, Every, Throttle


def test_every_is_true_at_the_first_and_each_third_call():
    every = Every(3)
    assert [every() for _ in range(7)] == [True, False, False, True, False, False, True]


def test_a_throttle_is_true_once_in_its_seconds():
    clock = FakeClock()
    throttle = Throttle(2.0, clock)
    due = []
    for _ in range(6):
        due.append(throttle())
        clock.advance(0.9)
    assert due == [True, False, False, True, False, False]


@pytest.mark.parametrize(("kind", "value"), [(Every, 0), (Every, 1.5), (Throttle, 0), (Throttle, float("nan"))])
def test_invalid_intervals_are_refused(kind, value):
    with pytest.raises(SettingError):
        kind(value)


# -- evaluations -------------------------------------------------------------------------------------------------------


def run(budget, clock, steps, step_s, evaluation_s):
    """Return the steps after which there was an evaluation."""
    after = []
    for step in range(1, steps + 1):
        clock.advance(step_s)
        if budget.due():
            with budget:
                clock.advance(evaluation_s)
            after.append(step)
    return after


@pytest.mark.parametrize("evaluation_s", [0.1, 3.0, 40.0])
def test_evaluations_take_nearly_their_share_of_the_time(evaluation_s):
    clock = FakeClock()
    budget = EvaluationBudget(0.05, first=100, clock=clock)
    after = run(budget, clock, 50_000, 0.1, evaluation_s)
    assert after[0] == 100
    later = after[1:]
    between_s = (later[-1] - after[0]) * 0.1
    share = len(later) * evaluation_s / (len(later) * evaluation_s + between_s)
    assert 0.04 < share <= 0.05 + 1e-9


def test_the_longest_evaluation_determines_the_interval():
    clock = FakeClock()
    budget = EvaluationBudget(0.1, first=10, clock=clock)
    run(budget, clock, 10, 1.0, 20.0)
    assert budget.interval == 180
    run(budget, clock, 180, 1.0, 5.0)
    assert budget.interval == 180
    run(budget, clock, 180, 1.0, 40.0)
    assert budget.interval == 360


def _fail_after(seconds, clock):
    clock.advance(seconds)
    raise RuntimeError("mine")


def test_a_failed_evaluation_does_not_change_the_interval():
    clock = FakeClock()
    budget = EvaluationBudget(0.1, first=2, clock=clock)
    clock.advance(1.0)
    assert not budget.due()
    with pytest.raises(RuntimeError, match="mine"), budget:
        _fail_after(10.0, clock)
    assert budget.interval == 2


def test_ranks_agree_on_the_next_evaluation(tmp_path):
    clock = FakeClock()
    budget = EvaluationBudget(0.5, first=2, clock=clock)
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        assert run(budget, clock, 20, 1.0, 6.0) == [2, 8, 14, 20]
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize("settings", [{"share": 0.0}, {"share": 1.0}, {"first": 0}])
def test_invalid_budgets_are_refused(settings):
    with pytest.raises(SettingError):
        EvaluationBudget(**settings)

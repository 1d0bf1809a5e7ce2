"""Learning rates for other batch sizes, and accumulation to keep the batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SettingError
from penstock.plan.batch_size import accumulation_steps, scale_learning_rate


def test_eight_times_the_batch():
    linear = scale_learning_rate(0.1, 32, 256, dataset_size=1000)
    assert (linear.factor, linear.learning_rate, linear.warm_up_steps) == (8.0, pytest.approx(0.8), 20)
    root = scale_learning_rate(0.1, 32, 256, rule="sqrt", warm_up_steps=7)
    assert (root.learning_rate, root.warm_up_steps) == (pytest.approx(0.1 * 8**0.5), 7)


def test_the_warm_up_goes_from_the_old_rate_to_the_new_one_in_a_straight_line():
    found = scale_learning_rate(0.1, 32, 256, warm_up_steps=10)
    rates = [found.rate_at(step) for step in range(12)]
    assert rates[0] == pytest.approx(0.17)
    assert rates[4] == pytest.approx(0.45)
    assert rates[9] == rates[10] == rates[11] == pytest.approx(0.8)
    assert rates == sorted(rates)


@pytest.mark.parametrize("steps", [0, 1])
def test_without_a_warm_up_the_rate_is_the_new_one_at_once(steps):
    assert scale_learning_rate(0.1, 32, 64, warm_up_steps=steps).rate_at(0) == pytest.approx(0.2)


def test_a_smaller_batch_needs_no_warm_up():
    found = scale_learning_rate(0.8, 256, 64)
    assert (found.learning_rate, found.warm_up_steps, found.rate_at(0)) == (pytest.approx(0.2), 0, pytest.approx(0.2))


@given(st.floats(1e-6, 10), st.integers(1, 4096), st.integers(1, 4096), st.sampled_from(["linear", "sqrt"]))
def test_there_and_back_is_the_rate_it_was(rate, batch, new, rule):
    there = scale_learning_rate(rate, batch, new, rule=rule, warm_up_steps=3)
    back = scale_learning_rate(there.learning_rate, new, batch, rule=rule, warm_up_steps=3)
    assert back.learning_rate == pytest.approx(rate)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"learning_rate": float("inf")}, "learning_rate"),
        ({"batch_size": 0}, "batch_size"),
        ({"new_batch_size": 2.5}, "new_batch_size"),
        ({"new_batch_size": True}, "new_batch_size"),
        ({"rule": "cubic"}, "linear, sqrt"),
        ({"warm_up_steps": -1}, "warm_up_steps"),
        ({"warm_up_steps": None}, "dataset_size"),
        ({"warm_up_steps": None, "dataset_size": 0}, "dataset_size"),
    ],
)
def test_what_cannot_be_scaled_is_refused(arguments, word):
    given = {"learning_rate": 0.1, "batch_size": 8, "new_batch_size": 16, "warm_up_steps": 5, **arguments}
    with pytest.raises(SettingError) as caught:
        scale_learning_rate(**given)
    assert word in str(caught.value)


def test_accumulation_holds_the_effective_batch():
    assert accumulation_steps(256, 32) == 8
    assert accumulation_steps(256, 32, world_size=4) == 2
    assert accumulation_steps(32, 32) == 1


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((100, 32), "A batch of 25 divides it"),
        ((16, 32), "A batch of 16 divides it"),
        ((0, 4), "effective_batch"),
        ((8, 0), "batch_size"),
    ],
)
def test_an_effective_batch_that_cannot_be_held_is_refused_with_one_that_can(arguments, word):
    with pytest.raises(SettingError) as caught:
        accumulation_steps(*arguments)
    assert word in str(caught.value)


def test_ranks_that_do_not_divide_it_are_told():
    with pytest.raises(SettingError, match="No batch on 3 ranks"):
        accumulation_steps(100, 4, world_size=3)

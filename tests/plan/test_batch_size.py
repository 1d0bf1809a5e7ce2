"""Changes of the batch size: learning rates for larger batches, and accumulation of smaller ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SettingError
from penstock.plan.batch_size import accumulation_steps, change_batch_size, scale_learning_rate


def test_the_learning_rate_scales_linearly_or_with_the_square_root():
    linear = scale_learning_rate(0.1, 32, 256, dataset_size=1000)
    assert (linear.factor, linear.learning_rate, linear.warm_up_steps) == (8.0, pytest.approx(0.8), 20)
    root = scale_learning_rate(0.1, 32, 256, rule="sqrt", warm_up_steps=7)
    assert (root.learning_rate, root.warm_up_steps) == (pytest.approx(0.1 * 8**0.5), 7)


def test_the_warm_up_rises_linearly_from_the_old_rate_to_the_new_one():
    scaling = scale_learning_rate(0.1, 32, 256, warm_up_steps=10)
    rates = [scaling.rate_at(step) for step in range(12)]
    assert rates[0] == pytest.approx(0.17)
    assert rates[4] == pytest.approx(0.45)
    assert rates[9] == rates[10] == rates[11] == pytest.approx(0.8)
    assert rates == sorted(rates)


@pytest.mark.parametrize("steps", [0, 1])
def test_without_a_warm_up_the_first_step_has_the_new_rate(steps):
    assert scale_learning_rate(0.1, 32, 64, warm_up_steps=steps).rate_at(0) == pytest.approx(0.2)


def test_a_smaller_batch_needs_no_warm_up():
    found = scale_learning_rate(0.8, 256, 64)
    assert (found.learning_rate, found.warm_up_steps, found.rate_at(0)) == (pytest.approx(0.2), 0, pytest.approx(0.2))


@given(st.floats(1e-6, 10), st.integers(1, 4096), st.integers(1, 4096), st.sampled_from(["linear", "sqrt"]))
def test_scaling_to_a_size_and_back_gives_the_same_rate(rate, batch, new, rule):
    scaled = scale_learning_rate(rate, batch, new, rule=rule, warm_up_steps=3)
    back = scale_learning_rate(scaled.learning_rate, new, batch, rule=rule, warm_up_steps=3)
    assert back.learning_rate == pytest.approx(rate)


@pytest.mark.parametrize(
    ("arguments", "words"),
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
def test_invalid_arguments_of_a_scaling_are_refused(arguments, words):
    valid = {"learning_rate": 0.1, "batch_size": 8, "new_batch_size": 16, "warm_up_steps": 5}
    with pytest.raises(SettingError) as caught:
        scale_learning_rate(**{**valid, **arguments})
    assert words in str(caught.value)


def test_accumulation_keeps_the_effective_batch():
    assert accumulation_steps(256, 32) == 8
    assert accumulation_steps(256, 32, world_size=4) == 2
    assert accumulation_steps(32, 32) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((100, 32), "A batch of 25 divides it"),
        ((16, 32), "A batch of 16 divides it"),
        ((0, 4), "effective_batch"),
        ((8, 0), "batch_size"),
    ],
)
def test_a_size_that_does_not_divide_the_effective_batch_is_refused(arguments, words):
    with pytest.raises(SettingError) as caught:
        accumulation_steps(*arguments)
    assert words in str(caught.value)


def test_ranks_that_do_not_divide_the_effective_batch_are_refused():
    with pytest.raises(SettingError, match="No batch on 3 ranks"):
        accumulation_steps(100, 4, world_size=3)


# -- change_batch_size ---------------------------------------------------------------------------------------------


def test_a_larger_batch_gets_a_larger_learning_rate_by_both_rules_and_a_warm_up():
    change = change_batch_size(32, 128, learning_rate=0.1, dataset_size=12_800)
    assert {scaling.rule: scaling.learning_rate for scaling in change.scalings} == {
        "linear": pytest.approx(0.4),
        "sqrt": pytest.approx(0.2),
    }
    assert {scaling.warm_up_steps for scaling in change.scalings} == {500}  # five epochs
    assert (change.accumulation, change.note) == (None, "")


def test_an_unknown_length_of_the_warm_up_is_noted():
    change = change_batch_size(32, 128, learning_rate=0.1)
    assert change.scalings[0].learning_rate == pytest.approx(0.4)
    assert "warm-up" in change.note


def test_smaller_batches_can_be_accumulated():
    change = change_batch_size(128, 32, learning_rate=0.1)
    assert change.accumulation == 4
    assert change.scalings[0].learning_rate == pytest.approx(0.025)
    assert change.note == ""


def test_a_size_that_does_not_divide_the_batch_is_noted_with_one_that_does():
    change = change_batch_size(100, 32)
    assert change.accumulation is None
    assert "A batch of 25 divides it" in change.note
    assert change.scalings == ()


def test_the_same_size_changes_nothing():
    change = change_batch_size(32, 32, learning_rate=0.1)
    assert change.accumulation == 1
    assert [scaling.learning_rate for scaling in change.scalings] == [0.1, 0.1]

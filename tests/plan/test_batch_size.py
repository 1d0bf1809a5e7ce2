import pytest

from penstock.plan.batch_size import change_batch_size


def test_a_larger_batch_has_a_larger_rate_by_both_rules_and_a_warm_up():
    found = change_batch_size(32, 128, learning_rate=0.1, dataset_size=12_800)
    assert {each.rule: each.learning_rate for each in found.scalings} == {
        "linear": pytest.approx(0.4),
        "sqrt": pytest.approx(0.2),
    }
    assert {each.warm_up_steps for each in found.scalings} == {500}  # five epochs
    assert (found.accumulation, found.note) == (None, "")


def test_a_warm_up_of_unknown_length_is_said_to_be():
    found = change_batch_size(32, 128, learning_rate=0.1)
    assert found.scalings[0].learning_rate == pytest.approx(0.4)
    assert "warm-up" in found.note


def test_a_smaller_batch_can_be_added_up():
    found = change_batch_size(128, 32, learning_rate=0.1)
    assert found.accumulation == 4
    assert found.scalings[0].learning_rate == pytest.approx(0.025)
    assert found.note == ""


def test_a_batch_that_is_no_multiple_is_told_what_would_be():
    found = change_batch_size(100, 32)
    assert found.accumulation is None
    assert "A batch of 25 divides it" in found.note
    assert found.scalings == ()


def test_the_same_size_changes_nothing():
    found = change_batch_size(32, 32, learning_rate=0.1)
    assert found.accumulation == 1
    assert [each.learning_rate for each in found.scalings] == [0.1, 0.1]

import pytest

from penstock.demo.loss_agreement import FIRST_STEPS, OTHER_PIXELS, SAME_INPUTS, loss_agreement


def test_losses_are_compared_as_far_as_both_runs_went():
    found = loss_agreement([1.0, 0.5, 0.25], [1.0, 0.5], same_pixels=True)
    assert (found.steps, found.largest, found.agrees, str(found)) == (2, 0.0, True, "the same")


@pytest.mark.parametrize(("same_pixels", "tolerance"), [(True, SAME_INPUTS), (False, OTHER_PIXELS)])
def test_a_difference_is_a_share_of_the_first_loss_and_has_a_tolerance(same_pixels, tolerance):
    near = loss_agreement([4.0, 2.0], [4.0, 2.0 + tolerance], same_pixels=same_pixels)
    assert near.largest == pytest.approx(tolerance / 2)
    assert near.agrees
    far = loss_agreement([4.0, 2.0], [4.0, 2.0 + 3 * tolerance], same_pixels=same_pixels)
    assert not far.agrees
    assert str(far).startswith("DIFFER")


def test_nothing_in_common_is_no_agreement():
    found = loss_agreement([1.0], [], same_pixels=False)
    assert (found.agrees, str(found)) == (False, "NONE")


def test_a_loss_that_is_no_number_agrees_with_nothing():
    assert not loss_agreement([1.0, 1.0], [1.0, float("nan")], same_pixels=True).agrees


def test_of_other_pixels_only_the_first_steps_are_compared():
    before, after = [1.0] * 100, [1.0] * FIRST_STEPS + [2.0] * 100
    found = loss_agreement(before, after, same_pixels=False)
    assert (found.steps, found.largest) == (FIRST_STEPS, 0.0)
    assert not loss_agreement(before, after, same_pixels=True).agrees

"""The random choices for each sample: windows, mirroring, colours."""

import numpy as np

from penstock.data.decode.rng import uniform_draws
from penstock.data.device.transform.draw import GREY, draw_transforms
from penstock.data.fields import GpuTransform

MANY = np.arange(5000)


def test_random_numbers_of_a_sample_depend_only_on_seed_epoch_and_sample():
    alone = uniform_draws(7, 3, np.array([42]), 9)
    assert np.array_equal(uniform_draws(7, 3, np.arange(40, 45), 9)[2:3], alone)
    for other in (
        uniform_draws(8, 3, np.array([42]), 9),
        uniform_draws(7, 4, np.array([42]), 9),
        uniform_draws(7, 3, np.array([43]), 9),
    ):
        assert not np.any(other == alone)


def test_random_numbers_are_uniform_and_uncorrelated():
    numbers = uniform_draws(0, 0, MANY, 6)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert np.abs(numbers.mean(axis=0) - 0.5).max() < 0.02
    assert np.abs(np.corrcoef(numbers.T) - np.eye(6)).max() < 0.06
    assert np.abs(np.corrcoef(numbers[:-1, 0], numbers[1:, 0])[0, 1]) < 0.06
    assert len(np.unique(numbers)) == numbers.size


def test_windows_lie_inside_the_image_and_reach_all_of_it():
    drawn = draw_transforms(GpuTransform(size=(24, 32), crop="random"), (40, 50), 1, 0, MANY)
    tops, lefts, heights, widths = drawn.boxes.T
    assert set(heights) == {24}
    assert set(widths) == {32}
    assert tops.min() == 0
    assert tops.max() == 16
    assert lefts.min() == 0
    assert lefts.max() == 18


def test_the_centre_window_is_the_same_for_all():
    drawn = draw_transforms(GpuTransform(size=20, crop="centre"), (41, 50), 1, 0, MANY[:3])
    assert drawn.boxes.tolist() == [[10, 15, 20, 20]] * 3


def test_one_setting_does_not_change_the_choices_for_another():
    plain = draw_transforms(GpuTransform(flip=0.5), (64, 64), 5, 1, MANY)
    full = draw_transforms(
        GpuTransform(size=32, crop="random", flip=0.5, jitter=(0.1, 0.1, 0.1, 0.1)), (64, 64), 5, 1, MANY
    )
    assert np.array_equal(plain.flips, full.flips)
    assert 0.47 < plain.flips.mean() < 0.53
    assert plain.boxes is None
    assert plain.colours is None


def test_a_vanishing_jitter_leaves_colours_unchanged():
    row = draw_transforms(GpuTransform(jitter=(1e-9, 0, 0, 0)), (8, 8), 0, 0, MANY[:1]).colours[0]
    assert np.allclose(row, [1, 0, 0, 0, 1, 0, 0, 0, 1, 0], atol=1e-6)


def test_saturation_and_hue_do_not_change_grey_or_brightness():
    rows = draw_transforms(GpuTransform(jitter=(0, 0, 0.9, 0.5)), (8, 8), 0, 0, MANY[:50]).colours
    grey = rows[:, :9].reshape(-1, 3, 3) @ np.array([100.0, 100.0, 100.0])
    assert np.allclose(grey, 100, atol=0.01)
    red = rows[:, :9].reshape(-1, 3, 3) @ np.array([200.0, 40.0, 40.0])
    assert np.allclose(red @ GREY, np.array([200.0, 40.0, 40.0]) @ GREY, atol=0.01)
    assert np.ptp(red, axis=0).min() > 50

from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import SettingError
from penstock.testing import make_image


def test_images_depend_on_the_seed():
    assert np.array_equal(make_image(60, 90, 5), make_image(60, 90, 5))
    assert not np.array_equal(make_image(60, 90, 5), make_image(60, 90, 6))


def test_a_generator_gives_a_new_image_each_time():
    rng = np.random.default_rng(5)
    first, second = make_image(60, 90, rng), make_image(60, 90, rng)
    assert np.array_equal(first, make_image(60, 90, 5))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("size", [(1, 1), (1, 40), (40, 1), (7, 9), (301, 303), (1200, 80)])
def test_any_size_can_be_made(size):
    for seed in range(5):
        pixels = make_image(*size, seed)
        assert pixels.shape == (*size, 3)
        assert pixels.dtype == np.uint8


def test_an_impossible_size_is_refused():
    with pytest.raises(SettingError):
        make_image(0, 10, 0)


def test_the_spectrum_falls_like_that_of_photographs():
    """The amplitude of photographs is about 1/f: the log-log slope is near -1; 0 for noise, far below for a blur."""
    slopes = []
    for seed in range(6):
        luma = make_image(512, 512, seed).mean(axis=2) * np.hanning(512) * np.hanning(512)[:, None]
        amplitude = np.abs(np.fft.fft2(luma))
        frequency = np.hypot(np.fft.fftfreq(512)[:, None], np.fft.fftfreq(512)) * 512
        rings = [(low, low * 2) for low in (4, 8, 16, 32, 64, 128)]
        means = [amplitude[(frequency >= low) & (frequency < high)].mean() for low, high in rings]
        slopes.append(np.polyfit(np.log([low for low, _ in rings]), np.log(means), 1)[0])
    assert -1.8 < np.mean(slopes) < -0.8


def test_images_are_coloured_but_not_saturated():
    pixels = np.stack([make_image(100, 150, seed) for seed in range(20)]).astype(float)
    assert 60 < pixels.mean() < 180
    assert (pixels.max(axis=-1) - pixels.min(axis=-1)).mean() > 10
    assert ((pixels == 0) | (pixels == 255)).mean() < 0.1

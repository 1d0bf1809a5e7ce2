"""The fast resize is as good as Pillow's antialiased one, at small sizes, on fine texture and in random windows.

`pytest -s` prints the PSNR of each kind of image, against Pillow's bilinear resize of the same window at full size.
"""

from __future__ import annotations

import functools
import io

import numpy as np
import pytest
import simplejpeg
from PIL import Image as Pillow

from penstock import Image, RandomResizedCrop
from penstock.data.fields.base import SampleContext
from penstock.data.fields.geometry import (
    RANDOM_NUMBERS,
    Window,
    centre_geometry,
    fit_geometry,
    whole_image,
    window_geometry,
)
from penstock.data.fields.resize import LARGE_SIDE, decoder_divisor, resize_exact, resize_fast
from penstock.testing import make_image

SIZES = (64, 112, 224)
SHAPES = [(333, 500), (501, 375), (1500, 2250), (256, 128)]
WINDOWS = 6


def spectral_noise(height, width, slope, rng):
    """Return noise of unit variance whose amplitude falls as 1 / frequency**slope, as in photographs."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    frequency[0, 0] = np.inf
    phase = np.exp(2j * np.pi * rng.random(frequency.shape))
    noise = np.fft.irfft2(frequency**-slope * phase, s=(height, width))
    return noise / noise.std()


def textured(height, width, slope, contrast):
    """Return texture of all scales with sharp edges of other tones on it."""
    rng = np.random.default_rng(height + width)
    colours = np.stack([spectral_noise(height, width, slope, rng) * contrast for _ in range(3)], axis=-1)
    pixels = 128 + colours[:, :, :1] + colours / 5
    rows, columns = np.mgrid[:height, :width]
    for _ in range(12):
        centre, angle, length = rng.random(2) * (height, width), rng.random() * np.pi, rng.uniform(0.1, 0.4) * height
        across = (rows - centre[0]) * np.cos(angle) + (columns - centre[1]) * np.sin(angle)
        along = (columns - centre[1]) * np.cos(angle) - (rows - centre[0]) * np.sin(angle)
        inside = (abs(across) < length / 4) & (abs(along) < length)
        pixels[inside] = pixels[inside] * 0.4 + rng.uniform(0, 255, 3) * 0.6
    return pixels.clip(0, 255).astype(np.uint8)


def striped(height, width):
    """Return a fence: bars whose period grows from 3 to 12 pixels, in front of texture."""
    period = np.linspace(3, 12, width)
    bars = 128 + 60 * np.sin(2 * np.pi * np.cumsum(1 / period))
    return ((textured(height, width, 1.0, 30).astype(float) + bars[:, None]) / 2).astype(np.uint8)


KINDS = {
    "scene": lambda height, width: make_image(height, width, 7),
    "foliage": lambda height, width: textured(height, width, 0.8, 35),
    "rock": lambda height, width: textured(height, width, 1.2, 50),
    "fence": striped,
}


@functools.cache
def jpeg(kind, shape):
    return memoryview(simplejpeg.encode_jpeg(KINDS[kind](*shape), 90, colorsubsampling="420"))


@functools.cache
def full(kind, shape):
    with Pillow.open(io.BytesIO(jpeg(kind, shape))) as image:
        return image.convert("RGB")


def psnr_db(found, expected):
    error = np.square(found.astype(np.float64) - expected).mean()
    return float("inf") if error == 0 else 10 * np.log10(255**2 / error)


def by_pillow(image, window, size):
    top, left, height, width = window
    window = image.crop((left, top, left + width, top + height))
    return np.asarray(window.resize(size[::-1], Pillow.Resampling.BILINEAR))


def fast_and_exact(kind, shape, size):
    """Yield the whole image stretched, and windows of RandomResizedCrop, by the fast resize and by Pillow."""
    rng = np.random.default_rng(size)
    for crop in (None, *[RandomResizedCrop()] * WINDOWS):
        field = Image(".jpg", size=size, crop=crop, fit="pad" if crop else "stretch", layout="HWC")
        sample = SampleContext(rng.random(RANDOM_NUMBERS).tolist())
        found = field.decode_value(".jpg", jpeg(kind, shape), sample)
        yield found, by_pillow(full(kind, shape), sample.geometry.window, field.sides)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_jpeg_is_within_35_db_of_pillow_s_resize_whole_and_in_random_windows(kind, shape):
    found = {size: [psnr_db(*pair) for pair in fast_and_exact(kind, shape, size)] for size in SIZES}
    print(f"{kind:8} {shape}: " + ", ".join(f"{size}: {min(all_of):.1f} dB" for size, all_of in found.items()))
    assert min(map(min, found.values())) > 35


@pytest.mark.parametrize("shape", [(1500, 2250), (2001, 1333)])
def test_a_large_output_is_within_35_db_of_pillow_s_resize(shape):
    for kind in ("scene", "rock"):
        (found, expected), *_ = fast_and_exact(kind, shape, 2 * LARGE_SIDE)
        print(f"{kind:8} {shape}: {2 * LARGE_SIDE}: {psnr_db(found, expected):.1f} dB")
        assert psnr_db(found, expected) > 35


@pytest.mark.parametrize("factor", [0.3, 0.8, 1.05, 1.2, 1.5, 1.8, 2.0, 2.6, 3.3, 4.1, 7.7])
@pytest.mark.parametrize("kind", ["foliage", "rock"])
def test_images_that_are_not_shrunk_by_the_decoder_are_resized_as_well_by_any_factor(kind, factor):
    pixels = np.asarray(full(kind, (333, 500)))
    geometry = fit_geometry(333, 500, (round(333 / factor), round(500 / factor)), "stretch")
    expected = by_pillow(full(kind, (333, 500)), geometry.window, (geometry.height, geometry.width))
    assert psnr_db(resize_fast(pixels, geometry), expected) > 37


def test_the_two_axes_may_be_resized_by_any_two_factors():
    image = full("rock", (333, 500))
    for size in ((500, 60), (20, 700), (300, 100), (40, 480), (333, 80)):
        found = resize_fast(np.asarray(image), fit_geometry(333, 500, size, "stretch"))
        assert psnr_db(found, by_pillow(image, (0, 0, 333, 500), size)) > 37


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("shape", [(40, 70), (1000, 90)])
def test_16_bits_are_resized_with_the_same_quality(channels, shape):
    pixels = np.asarray(full("rock", (333, 500)))[:, :, :channels]
    geometry = fit_geometry(333, 500, shape, "stretch")
    found = resize_fast(pixels.astype(np.uint16) * 257, geometry)
    assert found.dtype == np.uint16
    assert found.shape == (*shape, channels)
    assert np.abs(found / 257 - resize_fast(pixels, geometry)).max() < 2.1


def test_16_bit_greyscale_is_resized_exactly_as_by_pillow():
    values = np.asarray(full("rock", (333, 500)))[:, :, :1].astype(np.uint16) * 257 + 3
    for size in ((40, 70), (333, 500), (400, 90)):
        with Pillow.fromarray(values[:, :, 0]) as image:
            expected = np.asarray(image.resize(size[::-1], Pillow.Resampling.BILINEAR))
        found = resize_exact(values, fit_geometry(333, 500, size, "stretch"))
        assert found.dtype == np.uint16
        assert np.array_equal(found[:, :, 0], expected)


@pytest.mark.parametrize("level", [1, 77, 128, 200, 254, 255])
def test_an_even_area_keeps_its_level_whatever_the_factor(level):
    pixels = np.full((120, 160, 3), level, np.uint8)
    for size in range(3, 160, 3):
        assert (resize_fast(pixels, fit_geometry(120, 160, (size, size), "stretch")) == level).all()


def test_nothing_is_shifted_by_the_decoder_s_shrinking():
    rows, columns = np.mgrid[:1201, :1601].astype(float)  # odd, so that a shrunk pixel lies across the edge
    ramp = np.dstack((rows / 5, columns / 7, rows / 5)).astype(np.uint8)
    data = memoryview(simplejpeg.encode_jpeg(ramp, 98, colorsubsampling="444"))
    for seed in range(20):
        sample = SampleContext(np.random.default_rng(seed).random(RANDOM_NUMBERS).tolist())
        found = Image(".jpg", size=64, crop=RandomResizedCrop(), layout="HWC").decode_value(".jpg", data, sample)
        top, left, height, width = sample.geometry.window
        assert decoder_divisor(sample.geometry) > 1
        # The ramp is rounded down, by 2/5 and 3/7 on average.
        expected_rows = (top + (np.arange(64) + 0.5) * height / 64 - 0.5) / 5 - 2 / 5
        expected_columns = (left + (np.arange(64) + 0.5) * width / 64 - 0.5) / 7 - 3 / 7
        for end in (slice(2, 12), slice(-12, -2)):
            assert abs((found[end, :, 0] - expected_rows[end, None]).mean()) < 0.3
            assert abs((found[:, end, 1] - expected_columns[end]).mean()) < 0.3


@pytest.mark.parametrize(
    ("window", "size", "divisor"),
    [
        ((375, 375), 224, 1),
        ((375, 375), 117, 2),
        ((375, 375), 118, 1),
        ((1500, 1500), 224, 4),
        ((6000, 6000), 64, 8),
        ((1500, 300), 64, 2),
        ((100, 100), 224, 1),
        ((2048, 2048), 1024, 2),
        ((2047, 2048), 1024, 1),
    ],
)
def test_the_decoder_shrinks_only_as_far_as_it_does_not_show(window, size, divisor):
    assert decoder_divisor(window_geometry(9000, 9000, Window(0, 0, *window), (size, size))) == divisor


def test_an_image_that_keeps_its_size_is_never_shrunk_or_changed():
    assert decoder_divisor(whole_image(5000, 7000)) == 1
    pixels = make_image(40, 50, 1)
    for resize in (resize_fast, resize_exact):
        assert np.array_equal(resize(pixels, whole_image(40, 50)), pixels)


def test_a_window_is_resized_as_if_there_were_nothing_around_it():
    pixels = make_image(200, 300, 1)
    geometry = window_geometry(200, 300, Window(20, 31, 150, 201), (48, 48))
    alone = pixels[20:170, 31:232].copy()
    for resize in (resize_fast, resize_exact):
        assert np.array_equal(resize(pixels, geometry), resize(alone, fit_geometry(150, 201, (48, 48), "stretch")))


def test_a_side_longer_than_opencv_s_affine_warp_allows_is_resized():
    geometry = fit_geometry(7, 80_001, (3, 40_000), "stretch")
    found = resize_fast(np.full((4, 40_001, 3), 99, np.uint8), geometry, 2)
    assert found.shape == (3, 40_000, 3)
    assert (found == 99).all()


@pytest.mark.parametrize("shape", [(375, 500), (500, 333), (640, 480), (1201, 1599)])
@pytest.mark.parametrize(("size", "resize"), [(224, 256), (112, 120), (64, 200), (300, 480)])
def test_only_what_is_not_cut_off_is_computed_and_it_is_in_its_place(shape, size, resize):
    geometry = centre_geometry(*shape, resize, (size, size))
    image = full("rock", shape)
    whole = by_pillow(image, (0, 0, *shape), (geometry.height, geometry.width))
    expected = whole[geometry.cut_top :, geometry.cut_left :][:size, :size]
    assert np.array_equal(resize_exact(np.asarray(image), geometry), expected)
    found = resize_fast(np.asarray(image), geometry)
    assert found.shape == (size, size, 3)
    assert psnr_db(found, expected) > 36
    data = memoryview(simplejpeg.encode_jpeg(np.asarray(image), 95, colorsubsampling="444"))
    field = Image(".jpg", size=size, resize=resize, crop="center", layout="HWC")
    assert psnr_db(field.decode_value(".jpg", data, SampleContext()), expected) > 36

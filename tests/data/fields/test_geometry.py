"""The geometry of images: how they fit, and random windows."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.data.decode.rng import uniform_draws
from penstock.data.fields.geometry import (
    RANDOM_NUMBERS,
    ImageGeometry,
    RandomResizedCrop,
    Window,
    centre_geometry,
    fit_geometry,
)
from penstock.errors import SettingError

SIDE = st.one_of(st.integers(1, 12), st.integers(1, 70_000))
TARGET = st.integers(1, 1500)


@pytest.mark.parametrize(
    ("height", "width", "size", "fit", "expected"),
    [
        (1500, 2250, (1024, 1024), "pad", (683, 1024, 1024, 1024)),
        (2250, 1500, (1024, 1024), "pad", (1024, 683, 1024, 1024)),
        (375, 500, (224, 224), "crop", (224, 299, 224, 224, 0, 37)),
        (500, 375, (224, 224), "crop", (299, 224, 224, 224, 37, 0)),
        (375, 500, (224, 100), "stretch", (224, 100, 224, 100)),
        (375, 500, (224, 224), "short", (224, 299, 224, 299)),
        (500, 375, (224, 224), "short", (299, 224, 299, 224)),
        (100, 100, (224, 112), "crop", (224, 224, 224, 112, 0, 56)),
    ],
)
def test_geometry_of_common_image_sizes(height, width, size, fit, expected):
    assert fit_geometry(height, width, size, fit) == ImageGeometry(
        height, width, Window(0, 0, height, width), *expected
    )


@pytest.mark.parametrize("fit", ["pad", "crop", "stretch", "short"])
def test_an_image_of_the_right_size_is_not_changed(fit):
    assert fit_geometry(64, 64, (64, 64), fit) == ImageGeometry(64, 64, Window(0, 0, 64, 64), 64, 64, 64, 64)


@given(SIDE, SIDE, TARGET, TARGET)
def test_fit_pad_shows_the_whole_image_and_fills_one_side(height, width, out_height, out_width):
    found = fit_geometry(height, width, (out_height, out_width), "pad")
    assert (found.cut_top, found.cut_left) == (0, 0)
    assert 1 <= found.height <= out_height
    assert 1 <= found.width <= out_width
    assert found.height == out_height or found.width == out_width
    assert found.covered == (found.height, found.width)


@given(SIDE, SIDE, TARGET, TARGET)
def test_fit_crop_covers_the_output_and_keeps_the_middle(height, width, out_height, out_width):
    found = fit_geometry(height, width, (out_height, out_width), "crop")
    assert found.covered == (out_height, out_width)
    assert found.height == out_height or found.width == out_width
    for side, cut, out in ((found.height, found.cut_top, out_height), (found.width, found.cut_left, out_width)):
        assert 0 <= (side - out - cut) - cut <= 1


@given(SIDE, SIDE, TARGET, TARGET)
def test_fit_stretch_fills_the_output(height, width, out_height, out_width):
    found = fit_geometry(height, width, (out_height, out_width), "stretch")
    assert (found.height, found.width, *found.covered) == (out_height, out_width) * 2


@given(SIDE, SIDE, TARGET)
def test_fit_short_gives_the_shorter_side_the_size_and_cuts_nothing(height, width, side):
    found = fit_geometry(height, width, (side, side), "short")
    assert min(found.height, found.width) == side
    assert (found.out_height, found.out_width) == (found.height, found.width)
    assert found.covered == (found.height, found.width)


@given(SIDE, SIDE, TARGET, TARGET, st.sampled_from(["pad", "crop", "short"]))
def test_the_aspect_ratio_is_kept_to_half_a_pixel(height, width, out_height, out_width, fit):
    found = fit_geometry(height, width, (out_height, out_width), fit)
    by_height = abs(found.width * height - width * found.height) <= height / 2
    by_width = abs(found.height * width - height * found.width) <= width / 2
    assert by_height or by_width or 1 in (found.height, found.width)


@given(SIDE, SIDE, TARGET, TARGET)
def test_fit_letterbox_is_fit_pad_in_the_middle(height, width, out_height, out_width):
    found = fit_geometry(height, width, (out_height, out_width), "letterbox")
    padded = fit_geometry(height, width, (out_height, out_width), "pad")
    assert (found.height, found.width, found.covered) == (padded.height, padded.width, padded.covered)
    below, right = out_height - found.height - found.pad_top, out_width - found.width - found.pad_left
    assert 0 <= below - found.pad_top <= 1
    assert 0 <= right - found.pad_left <= 1


# -- crop="center" ----------------------------------------------------------------------------------------------------


def torchvision_s_centre(height, width, resize, size):
    """Return the resized height and width, and where the crop begins, as torchvision's Resize and CenterCrop do."""
    short, long = (width, height) if width <= height else (height, width)
    new_short, new_long = resize, int(resize * long / short)
    new_width, new_height = (new_short, new_long) if width <= height else (new_long, new_short)
    top, left = int(round((new_height - size) / 2.0)), int(round((new_width - size) / 2.0))  # noqa: RUF046
    return new_height, new_width, top, left


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 600), st.data())
def test_the_centre_is_rounded_as_by_torchvision(height, width, resize, data):
    size = data.draw(st.integers(1, resize))
    found = centre_geometry(height, width, resize, (size, size))
    expected = torchvision_s_centre(height, width, resize, size)
    assert (found.height, found.width, found.cut_top, found.cut_left) == expected
    assert found.covered == (size, size)


# -- RandomResizedCrop ------------------------------------------------------------------------------------------------

DRAWS = 20_000


def torchvision_s_windows(height, width, scale, ratio, count):
    """Draw windows as torchvision's RandomResizedCrop.get_params does, with torch's generator."""
    generator = torch.Generator().manual_seed(1)
    log_low, log_high = torch.log(torch.tensor(ratio)).tolist()
    for _ in range(count):
        for _ in range(10):
            area = height * width * torch.empty(1).uniform_(*scale, generator=generator).item()
            aspect = math.exp(torch.empty(1).uniform_(log_low, log_high, generator=generator).item())
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                top = torch.randint(0, height - h + 1, (1,), generator=generator).item()
                left = torch.randint(0, width - w + 1, (1,), generator=generator).item()
                yield top, left, h, w
                break
        else:
            w, h = width, height
            if width / height < min(ratio):
                h = round(width / min(ratio))
            elif width / height > max(ratio):
                w = round(height * max(ratio))
            yield (height - h) // 2, (width - w) // 2, h, w


def our_windows(height, width, scale, ratio, count):
    """Draw windows with the random numbers of samples, as a worker gets them."""
    crop = RandomResizedCrop(scale, ratio)
    draws = uniform_draws(7, 0, np.arange(count), RANDOM_NUMBERS).tolist()
    return [crop.window(height, width, each) for each in draws]


def largest_difference(first, second):
    """Return the two-sample Kolmogorov-Smirnov statistic."""
    values = np.concatenate((first, second))
    below = [np.searchsorted(np.sort(each), values, side="right") / len(each) for each in (first, second)]
    return np.abs(below[0] - below[1]).max()


@pytest.mark.parametrize(
    ("height", "width", "scale", "ratio"),
    [
        (375, 500, (0.08, 1.0), (3 / 4, 4 / 3)),
        (500, 333, (0.08, 1.0), (3 / 4, 4 / 3)),
        (60, 600, (0.08, 1.0), (3 / 4, 4 / 3)),  # some draws fail ten times
        (224, 224, (0.35, 0.9), (0.5, 2.0)),
    ],
)
def test_windows_have_the_distribution_of_torchvision_s(height, width, scale, ratio):
    windows = np.array(our_windows(height, width, scale, ratio, DRAWS))
    expected = np.array([*torchvision_s_windows(height, width, scale, ratio, DRAWS)])
    # With equal distributions, the statistic is larger than this in one of 1,000 comparisons.
    critical = 1.95 * math.sqrt(2 / DRAWS)
    for name, value in {
        "top": lambda w: w[:, 0],
        "left": lambda w: w[:, 1],
        "area": lambda w: w[:, 2] * w[:, 3],
        "ratio": lambda w: w[:, 3] / w[:, 2],
        "relative position": lambda w: w[:, 0] / np.maximum(1, height - w[:, 2]),
    }.items():
        assert largest_difference(value(windows), value(expected)) < critical, name


@pytest.mark.parametrize(
    ("height", "width", "window"),
    [(10, 1000, (0, 493, 10, 13)), (1000, 10, (493, 0, 13, 10)), (1, 1, (0, 0, 1, 1)), (2, 900, (0, 448, 2, 3))],
)
def test_after_ten_windows_outside_of_the_image_the_central_one_is_taken(height, width, window):
    assert RandomResizedCrop((0.9, 1.0)).window(height, width, [0.5] * RANDOM_NUMBERS) == window


def test_the_fallback_is_taken_as_often_as_by_torchvision():
    shape = 100, 900
    ours = our_windows(*shape, (0.08, 1.0), (3 / 4, 4 / 3), 5000)
    expected = [*torchvision_s_windows(*shape, (0.08, 1.0), (3 / 4, 4 / 3), 5000)]
    fallback = (0, 383, 100, 133)
    counts = ours.count(fallback), expected.count(fallback)
    assert min(counts) > 500
    assert abs(counts[0] - counts[1]) < 4 * math.sqrt(sum(counts))


@given(SIDE, SIDE, st.lists(st.floats(0, 1, exclude_max=True), min_size=RANDOM_NUMBERS, max_size=RANDOM_NUMBERS))
def test_a_window_lies_within_its_image(height, width, draws):
    window = RandomResizedCrop().window(height, width, draws)
    assert window.height >= 1
    assert window.width >= 1
    assert 0 <= window.top <= height - window.height
    assert 0 <= window.left <= width - window.width


@pytest.mark.parametrize(
    "settings",
    [{"scale": (0.5, 0.1)}, {"scale": (0, 1)}, {"scale": (0.5, 1.5)}, {"ratio": (-1, 2)}, {"ratio": (1, 2, 3)}],
)
def test_impossible_ranges_are_refused(settings):
    with pytest.raises(SettingError):
        RandomResizedCrop(**settings)


# -- coordinates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mirrored", [False, True])
def test_scale_and_offset_move_the_corners_of_the_window_to_those_of_the_covered_part(mirrored):
    whole = ImageGeometry(90, 120, Window(10, 20, 60, 80), 30, 20, 40, 50, pad_top=4, pad_left=7, mirrored=mirrored)
    (scale_y, scale_x), (offset_y, offset_x) = whole.scale, whole.offset
    assert (10 * scale_y + offset_y, 70 * scale_y + offset_y) == (4, 34)
    corners = [20 * scale_x + offset_x, 100 * scale_x + offset_x]
    assert corners == ([27, 7] if mirrored else [7, 27])

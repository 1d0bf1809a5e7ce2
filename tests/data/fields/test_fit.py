"""The arithmetic of fitting a picture into a size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.data.fields.fit import FitGeometry, fit_geometry

SIDE = st.one_of(st.integers(1, 12), st.integers(1, 70_000))
TARGET = st.integers(1, 1500)


@pytest.mark.parametrize(
    ("height", "width", "size", "fit", "expected"),
    [
        (1500, 2250, (1024, 1024), "pad", FitGeometry(683, 1024, 0, 0, 1024, 1024)),
        (2250, 1500, (1024, 1024), "pad", FitGeometry(1024, 683, 0, 0, 1024, 1024)),
        (375, 500, (224, 224), "crop", FitGeometry(224, 299, 0, 37, 224, 224)),
        (500, 375, (224, 224), "crop", FitGeometry(299, 224, 37, 0, 224, 224)),
        (375, 500, (224, 100), "stretch", FitGeometry(224, 100, 0, 0, 224, 100)),
        (375, 500, (224, 224), "short", FitGeometry(224, 299, 0, 0, 224, 299)),
        (500, 375, (224, 224), "short", FitGeometry(299, 224, 0, 0, 299, 224)),
        (100, 100, (224, 112), "crop", FitGeometry(224, 224, 0, 56, 224, 112)),
    ],
)
def test_familiar_pictures_go_where_one_expects(height, width, size, fit, expected):
    assert fit_geometry(height, width, size, fit) == expected


@pytest.mark.parametrize("fit", ["pad", "crop", "stretch", "short"])
def test_a_picture_of_the_right_size_is_left_alone(fit):
    assert fit_geometry(64, 64, (64, 64), fit) == FitGeometry(64, 64, 0, 0, 64, 64)


@given(SIDE, SIDE, TARGET, TARGET)
def test_padding_shows_all_of_the_picture_and_fills_one_side(height, width, out_height, out_width):
    found = fit_geometry(height, width, (out_height, out_width), "pad")
    assert (found.top, found.left) == (0, 0)
    assert 1 <= found.height <= out_height
    assert 1 <= found.width <= out_width
    assert found.height == out_height or found.width == out_width
    assert found.covered == (found.height, found.width)


@given(SIDE, SIDE, TARGET, TARGET)
def test_cropping_covers_the_output_and_keeps_the_middle(height, width, out_height, out_width):
    found = fit_geometry(height, width, (out_height, out_width), "crop")
    assert found.covered == (out_height, out_width)
    assert found.height == out_height or found.width == out_width
    for side, cut, out in ((found.height, found.top, out_height), (found.width, found.left, out_width)):
        assert 0 <= (side - out - cut) - cut <= 1


@given(SIDE, SIDE, TARGET, TARGET)
def test_stretching_fills_the_output(height, width, out_height, out_width):
    found = fit_geometry(height, width, (out_height, out_width), "stretch")
    assert found == FitGeometry(out_height, out_width, 0, 0, out_height, out_width)


@given(SIDE, SIDE, TARGET)
def test_short_gives_the_shorter_side_the_size_and_cuts_nothing(height, width, side):
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

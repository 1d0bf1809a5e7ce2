"""The image field: what is decoded and resized into a slot, how good it is, what is refused; and the geometry."""

import functools
import io

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Pillow

from penstock.data.fields import Image
from penstock.data.fields.image import FitGeometry, fit_geometry
from penstock.errors import GuardError, SampleError, SettingError
from penstock.testing import make_image

NATURAL = [(375, 500), (500, 375), (1500, 2250), (256, 128), (480, 640)]
EXTREME = [(1, 1), (1, 300), (300, 1), (2, 900), (7, 5)]
FITS = ["pad", "crop", "stretch"]


def jpeg(pixels, quality=90):
    return memoryview(simplejpeg.encode_jpeg(pixels, quality=quality, colorsubsampling="420"))


def png(pixels):
    buffer = io.BytesIO()
    Pillow.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    return memoryview(buffer.getvalue())


@functools.cache
def natural(height, width, encode):
    return encode(make_image(height, width, 7))


def psnr_db(found, expected):
    error = np.square(found.astype(np.float64) - expected).mean()
    return float("inf") if error == 0 else 10 * np.log10(255**2 / error)


# -- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", NATURAL[:2] + EXTREME)
@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("quality", ["fast", "exact"])
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_an_image_of_any_aspect_ratio_fills_its_slot(shape, fit, quality, layout):
    field = Image(".jpg", size=(48, 64), fit=fit, quality=quality, layout=layout)
    data = jpeg(np.full((*shape, 3), 200, np.uint8))
    slot = np.full((3, 48, 64) if layout == "CHW" else (48, 64, 3), 99, np.uint8)
    field.decode_into(".jpg", data, slot)
    assert np.array_equal(slot, field.decode_value(".jpg", data))
    assert not np.any(slot == 99)
    if fit != "pad":
        assert np.abs(slot.astype(int) - 200).max() <= 2


@pytest.mark.parametrize("shape", EXTREME)
def test_fit_short_keeps_the_aspect_ratio_of_any_image(shape):
    found = Image(".jpg", size=6, fit="short").decode_value(".jpg", jpeg(np.full((*shape, 3), 200, np.uint8)))
    assert min(found.shape[1:]) == 6
    assert np.abs(found.astype(int) - 200).max() <= 2


def test_a_strip_that_would_be_enlarged_too_far_is_refused_before_memory_is_allocated():
    data = jpeg(np.zeros((1, 3000, 3), np.uint8))
    for fit in ("crop", "short"):
        with pytest.raises(GuardError, match="1×3000 would be enlarged to 1024×3072000"):
            Image(".jpg", size=1024, fit=fit).decode_value(".jpg", data)
    assert Image(".jpg", size=1024).decode_value(".jpg", data).shape == (3, 1024, 1024)


def test_padding_is_black_below_and_to_the_right():
    data = jpeg(np.full((100, 200, 3), 200, np.uint8))
    found = Image(".jpg", size=40, layout="HWC").decode_value(".jpg", data)
    assert np.abs(found[:20].astype(int) - 200).max() <= 2
    assert not found[20:].any()
    found = Image(".jpg", size=40, layout="HWC").decode_value(".jpg", jpeg(np.full((200, 100, 3), 200, np.uint8)))
    assert np.abs(found[:, :20].astype(int) - 200).max() <= 2
    assert not found[:, 20:].any()


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
def test_padding_is_written_again_when_a_slot_is_used_again(layout, dtype):
    field = Image(".jpg", size=32, layout=layout, dtype=dtype)
    slot = np.empty((3, 32, 32) if layout == "CHW" else (32, 32, 3), dtype)
    wide, high = jpeg(make_image(20, 60, 1)), jpeg(make_image(60, 20, 2))
    for data in (wide, high, wide):
        field.decode_into(".jpg", data, slot)
        assert np.array_equal(slot, field.decode_value(".jpg", data))


def test_fit_crop_keeps_the_middle():
    pixels = np.zeros((64, 192, 3), np.uint8)
    pixels[:, 64:128] = 255
    found = Image(".png", size=64, fit="crop").decode_value(".png", png(pixels))
    assert (found == 255).all()


@pytest.mark.parametrize("fit", FITS)
def test_layouts_hold_the_same_pixels(fit):
    data = jpeg(make_image(90, 130, 3))
    planes = Image(".jpg", size=(40, 50), fit=fit).decode_value(".jpg", data)
    pixels = Image(".jpg", size=(40, 50), fit=fit, layout="HWC").decode_value(".jpg", data)
    assert np.array_equal(planes.transpose(1, 2, 0), pixels)
    assert planes.flags.c_contiguous


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_floats_are_scaled_to_between_0_and_1(layout, dtype):
    data = jpeg(make_image(90, 130, 3))
    whole = Image(".jpg", size=40, layout=layout).decode_value(".jpg", data)
    found = Image(".jpg", size=40, layout=layout, dtype=dtype).decode_value(".jpg", data)
    assert found.dtype == dtype
    assert np.array_equal(found, (whole / np.float32(255)).astype(dtype))


def test_colours_are_rgb_and_not_swapped():
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[...] = (250, 120, 10)
    for suffix, data in ((".png", png(pixels)), (".jpg", jpeg(pixels))):
        found = Image((".jpg", ".png"), size=16).decode_value(suffix, data)
        assert np.abs(found.mean((1, 2)) - (250, 120, 10)).max() < 4


def test_without_a_size_images_keep_theirs():
    pixels = make_image(37, 53, 4)
    found = Image(".png", layout="HWC").decode_value(".png", png(pixels))
    assert np.array_equal(found, pixels)
    assert Image(".png").decode_value(".png", png(pixels)).shape == (3, 37, 53)


def test_a_greyscale_image_gets_three_equal_channels():
    grey = make_image(40, 40, 5)[:, :, 0]
    found = Image(".png", size=40).decode_value(".png", png(grey))
    assert np.array_equal(found, np.stack([grey] * 3))


# -- quality ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", NATURAL)
@pytest.mark.parametrize("fit", FITS)
def test_quality_exact_equals_the_result_of_pillow(shape, fit):
    # Measured: no difference with the same libjpeg-turbo; another build may round by a level or two.
    data = natural(*shape, jpeg)
    found = Image(".jpg", size=224, fit=fit, quality="exact", layout="HWC").decode_value(".jpg", data)
    with Pillow.open(io.BytesIO(data)) as opened:
        full = opened.convert("RGB")
    height, width = shape
    if fit == "stretch":
        expected = np.asarray(full.resize((224, 224), Pillow.Resampling.BILINEAR))
    else:
        ratio = 224 / (max(shape) if fit == "pad" else min(shape))
        scaled = (int(width * ratio + 0.5), int(height * ratio + 0.5))
        resized = np.asarray(full.resize(scaled, Pillow.Resampling.BILINEAR))
        top, left = (max(0, (side - 224) // 2) for side in resized.shape[:2])
        resized = resized[top : top + 224, left : left + 224]
        expected = np.zeros((224, 224, 3), np.uint8)
        expected[: resized.shape[0], : resized.shape[1]] = resized
    assert np.abs(found.astype(int) - expected).max() <= 2


@pytest.mark.parametrize("shape", NATURAL)
@pytest.mark.parametrize("size", [224, (100, 300), 64])
@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize(("suffix", "encode"), [(".jpg", jpeg), (".png", png)])
def test_quality_fast_is_within_35_db_of_exact_on_natural_images(shape, size, fit, suffix, encode):
    data = natural(*shape, encode)
    fast = Image(suffix, size=size, fit=fit).decode_value(suffix, data)
    exact = Image(suffix, size=size, fit=fit, quality="exact").decode_value(suffix, data)
    assert psnr_db(fast, exact) > 35  # measured: 36.0 at least, 42.6 at the median


def test_quality_fast_does_not_skip_pixels_when_it_shrinks_far():
    stripes = np.zeros((800, 800, 3), np.uint8)
    stripes[:, ::2] = 200
    found = Image(".png", size=50).decode_value(".png", png(stripes))
    assert np.abs(found.astype(int) - 100).max() <= 1


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [b"", b"\xff\xd8\xff", b"not an image"])
@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_data_that_is_not_an_image_is_a_bad_sample(damage, suffix):
    with pytest.raises(SampleError):
        Image(suffix, size=8).decode_value(suffix, memoryview(damage))


def test_a_truncated_jpeg_is_a_bad_sample():
    data = jpeg(make_image(100, 100, 8))
    with pytest.raises(GuardError, match="cut short"):
        Image(".jpg", size=50).decode_value(".jpg", data[: len(data) // 2])


def test_an_error_about_the_shape_of_the_slot_names_the_expected_and_the_found_shape():
    with pytest.raises(SampleError, match=r"\[3, 8, 8\] where \[3, 9, 8\] is expected"):
        Image(".jpg", size=8).decode_into(".jpg", jpeg(make_image(8, 8, 1)), np.empty((3, 9, 8), np.uint8))


@pytest.mark.parametrize(
    "settings",
    [
        {"size": 0},
        {"size": (8, -1)},
        {"size": (8, 8), "fit": "short"},
        {"size": 8, "fit": "squeeze"},
        {"quality": "best"},
        {"layout": "WHC"},
        {"dtype": "int8"},
    ],
)
def test_invalid_image_settings_are_refused(settings):
    with pytest.raises(SettingError):
        Image(".jpg", **settings)


@pytest.mark.parametrize("setting", [{"fit": "crop"}, {"fit": "short"}, {"quality": "exact"}])
def test_resize_settings_without_a_size_are_refused(setting):
    with pytest.raises(SettingError, match="fit and quality control how an image is resized"):
        Image(".jpg", **setting)


# -- geometry ---------------------------------------------------------------------------------------------------------

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
def test_geometry_of_common_image_sizes(height, width, size, fit, expected):
    assert fit_geometry(height, width, size, fit) == expected


@pytest.mark.parametrize("fit", ["pad", "crop", "stretch", "short"])
def test_an_image_of_the_right_size_is_not_changed(fit):
    assert fit_geometry(64, 64, (64, 64), fit) == FitGeometry(64, 64, 0, 0, 64, 64)


@given(SIDE, SIDE, TARGET, TARGET)
def test_fit_pad_shows_the_whole_image_and_fills_one_side(height, width, out_height, out_width):
    found = fit_geometry(height, width, (out_height, out_width), "pad")
    assert (found.top, found.left) == (0, 0)
    assert 1 <= found.height <= out_height
    assert 1 <= found.width <= out_width
    assert found.height == out_height or found.width == out_width
    assert found.covered == (found.height, found.width)


@given(SIDE, SIDE, TARGET, TARGET)
def test_fit_crop_covers_the_output_and_keeps_the_middle(height, width, out_height, out_width):
    found = fit_geometry(height, width, (out_height, out_width), "crop")
    assert found.covered == (out_height, out_width)
    assert found.height == out_height or found.width == out_width
    for side, cut, out in ((found.height, found.top, out_height), (found.width, found.left, out_width)):
        assert 0 <= (side - out - cut) - cut <= 1


@given(SIDE, SIDE, TARGET, TARGET)
def test_fit_stretch_fills_the_output(height, width, out_height, out_width):
    found = fit_geometry(height, width, (out_height, out_width), "stretch")
    assert found == FitGeometry(out_height, out_width, 0, 0, out_height, out_width)


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

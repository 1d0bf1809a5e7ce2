"""The image field: what is decoded and resized into a slot, how good it is, what is refused."""

import functools
import io

import numpy as np
import pytest
import simplejpeg
from PIL import Image as Pillow
from PIL import ImageOps

from penstock.data.fields import Image
from penstock.data.fields.base import SampleContext
from penstock.data.fields.geometry import RANDOM_NUMBERS, RandomResizedCrop
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
    field.decode_into(".jpg", data, slot, SampleContext())
    assert np.array_equal(slot, field.decode_value(".jpg", data, SampleContext()))
    assert not np.any(slot == 99)
    if fit != "pad":
        assert np.abs(slot.astype(int) - 200).max() <= 2


@pytest.mark.parametrize("shape", EXTREME)
def test_fit_short_keeps_the_aspect_ratio_of_any_image(shape):
    found = Image(".jpg", size=6, fit="short").decode_value(
        ".jpg", jpeg(np.full((*shape, 3), 200, np.uint8)), SampleContext()
    )
    assert min(found.shape[1:]) == 6
    assert np.abs(found.astype(int) - 200).max() <= 2


def test_a_strip_that_would_be_enlarged_too_far_is_refused_before_memory_is_allocated():
    data = jpeg(np.zeros((1, 3000, 3), np.uint8))
    for fit in ("crop", "short"):
        with pytest.raises(GuardError, match="1×3000 would be enlarged to 1024×3072000"):
            Image(".jpg", size=1024, fit=fit).decode_value(".jpg", data, SampleContext())
    assert Image(".jpg", size=1024).decode_value(".jpg", data, SampleContext()).shape == (3, 1024, 1024)


def test_padding_is_black_below_and_to_the_right():
    data = jpeg(np.full((100, 200, 3), 200, np.uint8))
    found = Image(".jpg", size=40, layout="HWC").decode_value(".jpg", data, SampleContext())
    assert np.abs(found[:20].astype(int) - 200).max() <= 2
    assert not found[20:].any()
    found = Image(".jpg", size=40, layout="HWC").decode_value(
        ".jpg", jpeg(np.full((200, 100, 3), 200, np.uint8)), SampleContext()
    )
    assert np.abs(found[:, :20].astype(int) - 200).max() <= 2
    assert not found[:, 20:].any()


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
def test_padding_is_written_again_when_a_slot_is_used_again(layout, dtype):
    field = Image(".jpg", size=32, layout=layout, dtype=dtype)
    slot = np.empty((3, 32, 32) if layout == "CHW" else (32, 32, 3), dtype)
    wide, high = jpeg(make_image(20, 60, 1)), jpeg(make_image(60, 20, 2))
    for data in (wide, high, wide):
        field.decode_into(".jpg", data, slot, SampleContext())
        assert np.array_equal(slot, field.decode_value(".jpg", data, SampleContext()))


def test_fit_crop_keeps_the_middle():
    pixels = np.zeros((64, 192, 3), np.uint8)
    pixels[:, 64:128] = 255
    found = Image(".png", size=64, fit="crop").decode_value(".png", png(pixels), SampleContext())
    assert (found == 255).all()


@pytest.mark.parametrize("fit", FITS)
def test_layouts_hold_the_same_pixels(fit):
    data = jpeg(make_image(90, 130, 3))
    planes = Image(".jpg", size=(40, 50), fit=fit).decode_value(".jpg", data, SampleContext())
    pixels = Image(".jpg", size=(40, 50), fit=fit, layout="HWC").decode_value(".jpg", data, SampleContext())
    assert np.array_equal(planes.transpose(1, 2, 0), pixels)
    assert planes.flags.c_contiguous


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_floats_are_scaled_to_between_0_and_1(layout, dtype):
    data = jpeg(make_image(90, 130, 3))
    whole = Image(".jpg", size=40, layout=layout).decode_value(".jpg", data, SampleContext())
    found = Image(".jpg", size=40, layout=layout, dtype=dtype).decode_value(".jpg", data, SampleContext())
    assert found.dtype == dtype
    assert np.array_equal(found, (whole / np.float32(255)).astype(dtype))


def test_colours_are_rgb_and_not_swapped():
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[...] = (250, 120, 10)
    for suffix, data in ((".png", png(pixels)), (".jpg", jpeg(pixels))):
        found = Image((".jpg", ".png"), size=16).decode_value(suffix, data, SampleContext())
        assert np.abs(found.mean((1, 2)) - (250, 120, 10)).max() < 4


def test_without_a_size_images_keep_theirs():
    pixels = make_image(37, 53, 4)
    found = Image(".png", layout="HWC").decode_value(".png", png(pixels), SampleContext())
    assert np.array_equal(found, pixels)
    assert Image(".png").decode_value(".png", png(pixels), SampleContext()).shape == (3, 37, 53)


def test_a_greyscale_image_gets_three_equal_channels():
    grey = make_image(40, 40, 5)[:, :, 0]
    found = Image(".png", size=40).decode_value(".png", png(grey), SampleContext())
    assert np.array_equal(found, np.stack([grey] * 3))


# -- quality ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", NATURAL)
@pytest.mark.parametrize("fit", FITS)
def test_quality_exact_equals_the_result_of_pillow(shape, fit):
    # Measured: no difference with the same libjpeg-turbo; another build may round by a level or two.
    data = natural(*shape, jpeg)
    found = Image(".jpg", size=224, fit=fit, quality="exact", layout="HWC").decode_value(".jpg", data, SampleContext())
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
    fast = Image(suffix, size=size, fit=fit).decode_value(suffix, data, SampleContext())
    exact = Image(suffix, size=size, fit=fit, quality="exact").decode_value(suffix, data, SampleContext())
    assert psnr_db(fast, exact) > 35  # measured: 36.0 at least, 42.6 at the median


def test_quality_fast_does_not_skip_pixels_when_it_shrinks_far():
    stripes = np.zeros((800, 800, 3), np.uint8)
    stripes[:, ::2] = 200
    found = Image(".png", size=50).decode_value(".png", png(stripes), SampleContext())
    assert np.abs(found.astype(int) - 100).max() <= 1


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [b"", b"\xff\xd8\xff", b"not an image"])
@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_data_that_is_not_an_image_is_a_bad_sample(damage, suffix):
    with pytest.raises(SampleError):
        Image(suffix, size=8).decode_value(suffix, memoryview(damage), SampleContext())


def test_a_truncated_jpeg_is_a_bad_sample():
    data = jpeg(make_image(100, 100, 8))
    with pytest.raises(GuardError, match="cut short"):
        Image(".jpg", size=50).decode_value(".jpg", data[: len(data) // 2], SampleContext())


def test_an_error_about_the_shape_of_the_slot_names_the_expected_and_the_found_shape():
    with pytest.raises(SampleError, match=r"\[3, 8, 8\] where \[3, 9, 8\] is expected"):
        Image(".jpg", size=8).decode_into(
            ".jpg", jpeg(make_image(8, 8, 1)), np.empty((3, 9, 8), np.uint8), SampleContext()
        )


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
    with pytest.raises(SettingError, match="fit, crop and quality control how an image is resized"):
        Image(".jpg", **setting)


# -- windows, mirroring, padding, depth -------------------------------------------------------------------------------


def decoded(field, data, draws=()):
    """Return the image of a sample with these random numbers, and its geometry."""
    sample = SampleContext(draws)
    pixels = field.decode_value(".jpg", data, sample)
    return pixels, sample.geometry


def opened(data):
    with Pillow.open(io.BytesIO(data)) as image:
        return image.convert("RGB")


RANDOM = [np.random.default_rng(seed).random(RANDOM_NUMBERS).tolist() for seed in range(12)]


@pytest.mark.parametrize("encode", [jpeg, png])
@pytest.mark.parametrize("shape", [(375, 500), (500, 333), (90, 700)])
def test_an_exact_random_window_equals_pillow_s_crop_and_resize(encode, shape):
    data = natural(*shape, encode)
    field = Image(size=(96, 128), crop=RandomResizedCrop(), quality="exact", layout="HWC")
    for draws in RANDOM:
        found, geometry = decoded(field, data, draws)
        top, left, height, width = geometry.window
        window = opened(data).crop((left, top, left + width, top + height))
        assert np.array_equal(found, np.asarray(window.resize((128, 96), Pillow.Resampling.BILINEAR)))


@pytest.mark.parametrize("encode", [jpeg, png])
@pytest.mark.parametrize("shape", [(375, 500), (501, 333), (256, 256), (90, 700)])
def test_an_exact_centre_equals_pillow_s_resize_and_torchvision_s_crop(encode, shape):
    data = natural(*shape, encode)
    found, _ = decoded(Image(size=224, resize=256, crop="center", quality="exact", layout="HWC"), data)
    height, width = shape
    short = min(shape)
    resized = opened(data).resize((int(256 * width / short), int(256 * height / short)), Pillow.Resampling.BILINEAR)
    top, left = round((resized.height - 224) / 2), round((resized.width - 224) / 2)
    assert np.array_equal(found, np.asarray(resized.crop((left, top, left + 224, top + 224))))


@pytest.mark.parametrize("settings", [{}, {"fit": "crop"}, {"fit": "letterbox"}, {"crop": RandomResizedCrop()}])
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_a_mirrored_image_is_the_image_mirrored(settings, layout):
    data = natural(375, 500, jpeg)
    for draws in RANDOM:
        plain, _ = decoded(Image(size=(60, 80), layout=layout, **settings), data, draws)
        found, geometry = decoded(Image(size=(60, 80), layout=layout, flip=0.5, **settings), data, draws)
        assert geometry.mirrored == (draws[0] < 0.5)
        axis = 2 if layout == "CHW" else 1
        assert np.array_equal(found, np.flip(plain, axis) if geometry.mirrored else plain)


def test_a_mirrored_image_without_a_size_is_the_image_mirrored():
    data = png(make_image(37, 53, 4))
    found, _ = decoded(Image(flip=1.0, layout="HWC"), data, [0.3])
    assert np.array_equal(found, make_image(37, 53, 4)[:, ::-1])


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("quality", ["fast", "exact"])
@pytest.mark.parametrize(
    ("shape", "area"), [((50, 100), (slice(10, 30), slice(0, 40))), ((90, 60), (slice(0, 40), slice(6, 33)))]
)
def test_a_letterbox_has_the_image_in_the_middle_and_the_fill_colour_around_it(layout, quality, shape, area):
    data = jpeg(np.full((*shape, 3), 200, np.uint8))
    field = Image(size=40, fit="letterbox", fill=(114, 7, 255), layout=layout, quality=quality)
    slot = np.full(field.shape, 99, np.uint8)
    field.decode_into(".jpg", data, slot, SampleContext())
    pixels = slot if layout == "HWC" else slot.transpose(1, 2, 0)
    assert np.abs(pixels[area].astype(int) - 200).max() <= 2
    padding = np.ones((40, 40), bool)
    padding[area] = False
    assert (pixels[padding] == (114, 7, 255)).all()


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize(
    ("mode", "dtype", "fill", "expected"),
    [
        ("RGB", "float32", 51, 0.2),
        ("RGB", "float16", (51, 51, 51), 0.2),
        ("L", "uint8", 77, 77),
        ("L", "float32", 255, 1.0),
        ("I;16", "uint16", 40_000, 40_000),
        ("I;16", "int32", 65_535, 65_535),
        ("I;16", "float32", 65_535, 1.0),
    ],
)
def test_the_fill_colour_is_in_the_values_of_the_file_whatever_the_dtype(layout, mode, dtype, fill, expected):
    values = np.full((20, 40), 1000, np.uint16) if mode == "I;16" else np.full((20, 40), 100, np.uint8)
    found, _ = decoded(Image(size=32, mode=mode, dtype=dtype, fill=fill, layout=layout), png(values))
    assert found.dtype == dtype
    pixels = found if layout == "HWC" else found.transpose(1, 2, 0)
    assert pixels.shape == (32, 32, 3 if mode == "RGB" else 1)
    assert pixels[16:] == pytest.approx(expected, abs=1e-3)
    level = values[0, 0] / (1 if "int" in dtype else 65_535 if mode == "I;16" else 255)
    assert pixels[:16] == pytest.approx(level, abs=1e-3)


@pytest.mark.parametrize("encode", [jpeg, png])
@pytest.mark.parametrize("quality", ["fast", "exact"])
@pytest.mark.parametrize("settings", [{}, {"fit": "crop"}, {"crop": RandomResizedCrop()}])
def test_greyscale_is_read_as_by_pillow(encode, quality, settings):
    data = natural(375, 500, encode)
    field = Image(size=64, mode="L", quality=quality, layout="HWC", **settings)
    found, geometry = decoded(field, data, RANDOM[0])
    top, left, height, width = geometry.window
    with Pillow.open(io.BytesIO(data)) as image:
        if encode is jpeg:
            image.draft("L", None)  # the brightness that the JPEG stores, without a detour by RGB
        window = image.convert("L").crop((left, top, left + width, top + height))
    resized = np.asarray(window.resize((geometry.width, geometry.height), Pillow.Resampling.BILINEAR))
    rows, columns = geometry.covered
    expected = resized[geometry.cut_top : geometry.cut_top + rows, geometry.cut_left : geometry.cut_left + columns]
    if quality == "exact":
        assert np.array_equal(found[:rows, :columns, 0], expected)
    assert psnr_db(found[:rows, :columns, 0], expected) > 35


@pytest.mark.parametrize("quality", ["fast", "exact"])
@pytest.mark.parametrize("settings", [{}, {"fit": "crop", "flip": 1.0}, {"crop": RandomResizedCrop()}])
def test_depth_of_16_bits_keeps_all_of_them(quality, settings):
    values = (np.arange(100)[:, None] * 500 + np.arange(200) * 70).astype(np.uint16)
    field = Image(".png", size=(50, 60), mode="I;16", quality=quality, layout="HWC", **settings)
    found, geometry = decoded(field, png(values), RANDOM[1])
    top, left, height, width = geometry.window
    rows, columns = geometry.covered
    down, across = height / geometry.height, width / geometry.width
    expected_rows = top + (np.arange(rows) + geometry.cut_top + 0.5) * down - 0.5
    expected_columns = left + (np.arange(columns) + geometry.cut_left + 0.5) * across - 0.5
    expected = expected_rows[:, None] * 500 + (expected_columns[::-1] if geometry.mirrored else expected_columns) * 70
    assert found.dtype == np.uint16
    inner = np.s_[2 : rows - 2, 2 : columns - 2]
    assert np.abs(found[:rows, :columns, 0][inner] - expected[inner]).max() < 64  # a quarter of what 8 bits can resolve


def test_16_bits_without_a_size_are_exact():
    values = np.arange(2000, dtype=np.uint16).reshape(40, 50) * 30
    found, _ = decoded(Image(".png", mode="I;16"), png(values))
    assert np.array_equal(found[0], values)


# -- what a file really is --------------------------------------------------------------------------------------------


def file_of(kind, pixels, **options):
    buffer = io.BytesIO()
    Pillow.fromarray(pixels).save(buffer, kind, **options)
    return memoryview(buffer.getvalue())


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_an_image_is_decoded_by_its_bytes_whatever_its_name(kind, suffix):
    data = file_of(kind, make_image(60, 80, 3))
    found = Image((".jpg", ".png"), layout="HWC").decode_value(suffix, data, SampleContext())
    assert np.abs(found.astype(int) - np.asarray(opened(data))).max() <= 2


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_16_bit_image_is_an_error_that_names_the_mode_to_use(mode):
    data = png(np.full((4, 5), 40_000, np.uint16))
    with pytest.raises(SampleError, match="16 bits per channel") as caught:
        Image(".png", mode=mode).decode_value(".png", data, SampleContext())
    assert caught.value.advice == 'Read it with mode="I;16"'


def test_a_jpeg_read_as_16_bits_is_an_error():
    with pytest.raises(SampleError, match="a JPEG has 8 bits per channel"):
        Image(".jpg", mode="I;16").decode_value(".jpg", natural(375, 500, jpeg), SampleContext())


# -- EXIF -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("quality", ["fast", "exact"])
@pytest.mark.parametrize(
    "settings", [{}, {"size": 48}, {"size": (48, 70), "fit": "crop"}, {"size": 64, "crop": RandomResizedCrop()}]
)
def test_the_exif_rotation_is_applied_as_by_pillow_if_requested(orientation, kind, quality, settings):
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "WEBP" else {"quality": 95, "subsampling": 0} if kind == "JPEG" else {}
    data = file_of(kind, make_image(301, 403, 6), exif=exif, **options)
    if settings:
        settings = {**settings, "quality": quality}
    for applied in (True, False):
        with Pillow.open(io.BytesIO(data)) as image:
            upright = ImageOps.exif_transpose(image) if applied else image
            turned = file_of("PNG", np.asarray(upright.convert("RGB")))
        expected, geometry = decoded(Image(**settings), turned, RANDOM[2])
        found, found_geometry = decoded(Image(exif_orientation=applied, **settings), data, RANDOM[2])
        assert found_geometry == geometry
        assert np.array_equal(found, expected) if quality == "exact" else psnr_db(found, expected) > 38


def test_a_large_image_that_is_turned_is_shrunk_by_the_decoder_without_a_shift():
    exif = Pillow.Exif()
    exif[0x0112] = 6
    for shape in ((1200, 1600), (1201, 1603)):
        data = file_of("JPEG", make_image(*shape, 6), exif=exif, quality=95, subsampling=0)
        with Pillow.open(io.BytesIO(data)) as image:
            turned = ImageOps.exif_transpose(image).convert("RGB").resize((96, 96), Pillow.Resampling.BILINEAR)
        found, _ = decoded(Image(size=96, fit="stretch", exif_orientation=True, layout="HWC"), data)
        assert psnr_db(found, np.asarray(turned)) > 38

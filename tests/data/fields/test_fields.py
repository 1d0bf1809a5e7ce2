"""Fields: from the bytes of a part to the entry of a batch."""

import functools
import io
import pickle

import numpy as np
import pytest
import simplejpeg
from PIL import Image as Pillow

from penstock.data.fields import Array, Image, Json, Label, Raw, Text
from penstock.errors import DecodeError, GuardError, SampleError, SettingError
from penstock.shards.codecs.arrays import encode_npy
from penstock.shards.codecs.zstd import compress
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


def npz(**arrays):
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return memoryview(buffer.getvalue())


def npy(array):
    return memoryview(encode_npy(array))


def psnr_db(found, expected):
    error = np.square(found.astype(np.float64) - expected).mean()
    return float("inf") if error == 0 else 10 * np.log10(255**2 / error)


# -- pictures: what comes out ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", NATURAL[:2] + EXTREME)
@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("quality", ["fast", "exact"])
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_any_picture_fits_its_slot_whatever_its_aspect_ratio(shape, fit, quality, layout):
    field = Image(".jpg", size=(48, 64), fit=fit, quality=quality, layout=layout)
    data = jpeg(np.full((*shape, 3), 200, np.uint8))
    slot = np.full((3, 48, 64) if layout == "CHW" else (48, 64, 3), 99, np.uint8)
    field.decode_into(".jpg", data, slot)
    assert np.array_equal(slot, field.decode_value(".jpg", data))
    assert not np.any(slot == 99)
    if fit != "pad":
        assert np.abs(slot.astype(int) - 200).max() <= 2


@pytest.mark.parametrize("shape", EXTREME)
def test_short_keeps_the_shape_of_any_picture(shape):
    found = Image(".jpg", size=6, fit="short").decode_value(".jpg", jpeg(np.full((*shape, 3), 200, np.uint8)))
    assert min(found.shape[1:]) == 6
    assert np.abs(found.astype(int) - 200).max() <= 2


def test_a_strip_that_would_be_enlarged_beyond_any_picture_is_refused_before_memory_is_asked_for():
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


def test_cropping_keeps_the_middle():
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


def test_without_a_size_pictures_keep_theirs():
    pixels = make_image(37, 53, 4)
    found = Image(".png", layout="HWC").decode_value(".png", png(pixels))
    assert np.array_equal(found, pixels)
    assert Image(".png").decode_value(".png", png(pixels)).shape == (3, 37, 53)


def test_a_grey_picture_gets_three_equal_channels():
    grey = make_image(40, 40, 5)[:, :, 0]
    found = Image(".png", size=40).decode_value(".png", png(grey))
    assert np.array_equal(found, np.stack([grey] * 3))


# -- pictures: how good they are -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", NATURAL)
@pytest.mark.parametrize("fit", FITS)
def test_exact_is_what_pillow_makes_of_it(shape, fit):
    # Found: no difference at all with the same libjpeg-turbo; another build may round by a level or two.
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
def test_fast_is_within_35_db_of_exact_on_natural_pictures(shape, size, fit, suffix, encode):
    data = natural(*shape, encode)
    fast = Image(suffix, size=size, fit=fit).decode_value(suffix, data)
    exact = Image(suffix, size=size, fit=fit, quality="exact").decode_value(suffix, data)
    assert psnr_db(fast, exact) > 35  # found: 36.0 at least, 42.6 in the middle


def test_fast_does_not_skip_pixels_when_it_shrinks_a_lot():
    stripes = np.zeros((800, 800, 3), np.uint8)
    stripes[:, ::2] = 200
    found = Image(".png", size=50).decode_value(".png", png(stripes))
    assert np.abs(found.astype(int) - 100).max() <= 1


# -- pictures: what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [b"", b"\xff\xd8\xff", b"not a picture"])
@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_what_is_no_picture_is_a_bad_sample(damage, suffix):
    with pytest.raises(SampleError):
        Image(suffix, size=8).decode_value(suffix, memoryview(damage))


def test_half_a_jpeg_is_a_bad_sample():
    data = jpeg(make_image(100, 100, 8))
    with pytest.raises(GuardError, match="cut short"):
        Image(".jpg", size=50).decode_value(".jpg", data[: len(data) // 2])


def test_a_slot_of_another_shape_says_expected_and_found():
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
def test_picture_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(SettingError):
        Image(".jpg", **settings)


@pytest.mark.parametrize("setting", [{"fit": "crop"}, {"fit": "short"}, {"quality": "exact"}])
def test_how_to_resize_is_refused_where_nothing_is_resized(setting):
    with pytest.raises(SettingError, match="fit and quality say how a picture is resized"):
        Image(".jpg", **setting)


def test_a_key_that_only_some_of_the_suffixes_need_is_taken():
    assert Array((".npz", ".npy"), key="x").decode_value(".npy", npy(FEATURES)).shape == FEATURES.shape


@pytest.mark.parametrize(
    ("field", "fixed_shape"),
    [
        (Image(size=8), True),
        (Image(size=8, fit="short"), False),
        (Image(), False),
        (Array(".npy"), True),
        (Array(".npy", ragged=True), False),
        (Label(".cls"), True),
        (Json(".json"), False),
        (Text(".txt"), False),
        (Raw(".bin"), False),
    ],
)
def test_fields_say_whether_they_have_a_slot_and_travel_to_workers(field, fixed_shape):
    assert field.fixed_shape is fixed_shape
    assert pickle.loads(pickle.dumps(field)) == field


# -- arrays ----------------------------------------------------------------------------------------------------------

FEATURES = np.arange(24, dtype=np.float16).reshape(2, 3, 4)


@pytest.mark.parametrize(
    ("suffix", "data"),
    [
        ("_features.npz", npz(other=np.zeros(3), features=FEATURES)),
        (".features.npz", npz(features=FEATURES)),
        (".features.features.npy", npy(FEATURES)),
        (".features.features.npy.zst", memoryview(compress(encode_npy(FEATURES)))),
    ],
)
def test_an_array_is_read_as_stored_by_anybody_and_as_stored_by_the_packer(suffix, data):
    field = Array("_features.npz", key="features")
    assert suffix in field.suffixes
    slot = np.empty((2, 3, 4), np.float16)
    field.decode_into(suffix, data, slot)
    assert np.array_equal(slot, FEATURES)
    assert np.array_equal(field.decode_value(suffix, data), FEATURES)


@pytest.mark.parametrize(
    ("stated", "suffixes"),
    [
        (Array(".mask.npy"), (".mask.npy", ".mask.npy.zst")),
        (Array("_mask.npy"), ("_mask.npy", ".mask.npy", ".mask.npy.zst")),
        (Array(".npz", key="a/b"), (".npz", ".a%2Fb.npy", ".a%2Fb.npy.zst")),
    ],
)
def test_what_was_stated_is_preferred_to_what_the_packer_makes_of_it(stated, suffixes):
    assert stated.suffixes == suffixes


def test_an_array_in_fortran_order_is_read_right():
    buffer = io.BytesIO()
    np.save(buffer, np.asfortranarray(FEATURES[0]))
    slot = np.empty((3, 4), np.float16)
    Array(".npy").decode_into(".npy", memoryview(buffer.getvalue()), slot)
    assert np.array_equal(slot, FEATURES[0])


@pytest.mark.parametrize("slot", [np.empty((2, 3, 5), np.float16), np.empty((2, 3, 4), np.float32)])
def test_an_array_that_does_not_fit_its_slot_says_expected_and_found(slot):
    with pytest.raises(SampleError) as caught:
        Array(".npy").decode_into(".npy", npy(FEATURES), slot)
    expected = f"{slot.dtype}{list(slot.shape)}"
    assert caught.value.reason == f"array is float16[2, 3, 4] where {expected} is expected"
    assert "ragged=True" in caught.value.advice


@pytest.mark.parametrize(
    ("declared", "expected"),
    [({"shape": (2, 3, 5)}, "float16[2, 3, 5]"), ({"dtype": "float32"}, "float32[2, 3, 4]")],
)
@pytest.mark.parametrize("ragged", [False, True])
def test_a_declared_shape_or_dtype_is_enforced(declared, expected, ragged):
    if ragged and "shape" in declared:
        declared, expected = {"dtype": "int8"}, "int8[2, 3, 4]"
    with pytest.raises(SampleError) as caught:
        Array(".npy", ragged=ragged, **declared).decode_value(".npy", npy(FEATURES))
    assert caught.value.reason == f"array is float16[2, 3, 4] where {expected} is expected"


def test_a_declared_shape_and_dtype_that_are_right_are_accepted():
    found = Array(".npy", shape=(2, 3, 4), dtype="float16").decode_value(".npy", npy(FEATURES))
    assert np.array_equal(found, FEATURES)


@pytest.mark.parametrize(("suffix", "encode"), [(".npy", npy), (".npz", lambda array: npz(a=array))])
def test_a_ragged_array_is_a_copy_that_outlives_the_arena(suffix, encode):
    memory = bytearray(encode(FEATURES))
    found = Array(suffix, key="a" if suffix == ".npz" else None, ragged=True).decode_value(suffix, memoryview(memory))
    memory[:] = bytes(len(memory))
    assert np.array_equal(found, FEATURES)
    assert found.flags.writeable


def test_an_array_that_the_npz_lacks_is_named_with_those_it_has():
    with pytest.raises(DecodeError, match="no array 'features'; it has 'edge'"):
        Array(".npz", key="features").decode_value(".npz", npz(edge=FEATURES))


def test_pickled_objects_are_refused():
    buffer = io.BytesIO()
    np.save(buffer, np.array([{}], object), allow_pickle=True)
    with pytest.raises(GuardError, match="pickles"):
        Array(".npy").decode_value(".npy", memoryview(buffer.getvalue()))


@pytest.mark.parametrize(
    ("suffix", "settings", "reason"),
    [
        (".npz", {}, "which array of '.npz'"),
        (".jpg", {}, "is not an array part"),
        (".npy", {"ragged": True, "shape": (3,)}, "ragged array has no one shape"),
        (".npy", {"dtype": "float17"}, "dtype 'float17' is not known"),
        (".npy", {"key": "x"}, "holds one array: key='x' has no meaning"),
        ((".mask.npy", ".mask.npy.zst"), {"key": "x"}, "has no meaning"),
    ],
)
def test_array_settings_that_make_no_sense_are_refused(suffix, settings, reason):
    with pytest.raises(SettingError, match=reason):
        Array(suffix, **settings)


# -- the rest --------------------------------------------------------------------------------------------------------


def test_json_is_parsed():
    assert Json(".json").decode_value(".json", memoryview(b'{"a": [1, "\xc3\xbc"]}')) == {"a": [1, "ü"]}


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe\xff", b"[" * 200_000])
def test_what_is_no_json_is_a_bad_sample(data):
    with pytest.raises(DecodeError, match="does not read as JSON"):
        Json(".json").decode_value(".json", memoryview(data))


def test_text_is_kept_as_it_stands():
    assert Text(".txt").decode_value(".txt", memoryview(" grün\n".encode())) == " grün\n"


def test_what_is_no_utf8_is_a_bad_sample():
    with pytest.raises(DecodeError, match="does not read as UTF-8"):
        Text(".txt").decode_value(".txt", memoryview(b"gr\xfcn"))


def test_raw_bytes_are_a_copy():
    memory = bytearray(b"abc")
    found = Raw(".bin").decode_value(".bin", memoryview(memory))
    memory[:] = b"xyz"
    assert found == b"abc"


@pytest.mark.parametrize("field", [Json(".json"), Text(".txt"), Raw(".bin")])
def test_a_field_without_a_shape_has_no_slot(field):
    with pytest.raises(SampleError, match="no slot"):
        field.decode_into(field.suffix, memoryview(b""), np.empty(1))


@pytest.mark.parametrize(
    ("key", "data", "expected"),
    [
        (None, b"7", 7),
        (None, b" -12\n", -12),
        ("id", b'{"id": 3}', 3),
        ("id", b'{"id": 9223372036854775807}', 2**63 - 1),
    ],
)
def test_a_label_is_a_whole_number(key, data, expected):
    field = Label(".cls", key=key)
    slot = np.zeros((), np.int64)
    field.decode_into(".cls", memoryview(data), slot)
    assert slot == field.decode_value(".cls", memoryview(data)) == expected


@pytest.mark.parametrize(
    ("key", "data"),
    [
        (None, b""),
        (None, b"cat"),
        (None, b"1.5"),
        (None, b"9" * 30),
        (None, b"9" * 9000),
        ("id", b"{}"),
        ("id", b"[1]"),
        ("id", b"7"),
        ("id", b'{"id": 1.0}'),
        ("id", b'{"id": true}'),
        ("id", b'{"id": "7"}'),
        ("id", b'{"id": null}'),
        ("id", b'{"id": 9223372036854775808}'),
        ("id", b"[" * 200_000),
    ],
)
def test_what_is_no_whole_number_is_a_bad_sample(key, data):
    with pytest.raises(DecodeError, match="holds no label"):
        Label(".cls", key=key).decode_value(".cls", memoryview(data))


def test_several_suffixes_may_be_given():
    assert Json((".json", ".meta")).suffixes == (".json", ".meta")
    assert Label((".cls", ".id")).suffixes == (".cls", ".id")
    assert Image().suffixes == (".jpg", ".jpeg", ".png")

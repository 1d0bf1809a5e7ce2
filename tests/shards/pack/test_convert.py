import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from tests.support import hostile

from penstock.errors import DecodeError, GuardError, PenstockError, SampleError
from penstock.shards.codecs import (
    compress,
    decode_jpeg,
    decode_npy,
    decode_npy_zst,
    decompress,
    encode_jpeg,
    encode_npy,
)
from penstock.shards.pack.convert import convert_parts
from penstock.shards.pack.options import PackOptions
from penstock.testing import MULTICAMERA, SA1B, make_image, sample_parts

FEATURES = np.linspace(-3, 3, 600, dtype=np.float16).reshape(20, 30)


def arrays_of(data):
    with np.load(io.BytesIO(data), allow_pickle=False) as loaded:
        return {name: loaded[name] for name in loaded.files}


def same(first, second):
    return first.dtype == second.dtype and np.array_equal(first, second)


def convert_to_one_part(parts, **options):
    (stored,) = convert_parts(parts, PackOptions(**options))
    return stored


# -- arrays ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", [SA1B, MULTICAMERA], ids=lambda preset: preset.name)
def test_with_the_default_options_every_byte_is_kept(preset):
    parts = sample_parts(preset, 0, scale=0.1)
    assert [data for _, data in convert_parts(parts.items(), PackOptions())] == list(parts.values())


@pytest.mark.parametrize(("codec", "decode"), [("raw", decode_npy), ("zstd", decode_npy_zst)])
def test_an_npz_becomes_one_part_per_array(codec, decode):
    parts = sample_parts(SA1B, 0, scale=0.1)
    stored = dict(convert_parts(parts.items(), PackOptions(arrays=codec)))
    ending = ".npy.zst" if codec == "zstd" else ".npy"
    assert list(stored) == [".jpg", ".features.features" + ending, ".features.edge" + ending]
    assert stored[".jpg"] == parts[".jpg"]
    for name, array in arrays_of(parts["_features.npz"]).items():
        assert same(decode(stored[f".features.{name}{ending}"]), array)


@pytest.mark.parametrize(
    ("suffix", "data"), [("_edge.npy", encode_npy(FEATURES)), ("_edge.npy.zst", compress(encode_npy(FEATURES)))]
)
@pytest.mark.parametrize(("codec", "packed"), [("raw", ".edge.npy"), ("zstd", ".edge.npy.zst")])
def test_a_part_that_is_a_single_array_is_stored_with_the_requested_codec(suffix, data, codec, packed):
    name, stored = convert_to_one_part([(suffix, data)], arrays=codec)
    assert name == packed
    plain = decompress(stored, 1 << 20) if codec == "zstd" else stored
    assert same(decode_npy(plain), FEATURES)


@pytest.mark.parametrize("suffix", ["_edge.npy", "_edge.npy.zst"])
def test_a_part_that_is_a_single_array_is_cast(suffix):
    data = encode_npy(FEATURES)
    _, stored = convert_to_one_part(
        [(suffix, compress(data) if suffix.endswith("zst") else data)], arrays="raw", casts=(("edge", "float64"),)
    )
    assert same(decode_npy(stored), FEATURES.astype(np.float64))


def test_arrays_in_fortran_order_and_big_endian_keep_their_values(npz):
    source = np.asfortranarray(np.arange(12, dtype=">i4").reshape(3, 4))
    _, stored = convert_to_one_part([(".npz", npz(x=source))], arrays="raw")
    assert np.array_equal(decode_npy(stored), source)


# -- casts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (FEATURES, "float32"),
        (FEATURES.astype(np.float32), "float16"),
        (np.array([0, 255], np.uint8), "float16"),
        (np.array([0.0, 255.0]), "uint8"),
        (np.array([1, 0, 1], np.uint8), "bool"),
        (np.array([True, False]), "float32"),
        (np.array([-128, 127], np.int64), "int8"),
        (np.array([np.inf, -np.inf, np.nan, 1.0]), "float16"),
        (np.zeros((0, 4)), "float16"),
    ],
)
def test_a_cast_into_a_dtype_that_holds_all_values_succeeds(npz, array, dtype):
    _, stored = convert_to_one_part([(".npz", npz(x=array))], arrays="raw", casts=(("x", dtype),))
    cast = decode_npy(stored)
    assert cast.dtype == np.dtype(dtype)
    assert np.allclose(cast.astype(np.float64), array.astype(np.float64), rtol=1e-3, equal_nan=True)


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.array([1e6]), "float16"),
        (np.array([1e300]), "float32"),
        (np.array([0.5]), "uint8"),
        (np.array([-1.0]), "uint8"),
        (np.array([256]), "uint8"),
        (np.array([-1]), "uint32"),
        (np.array([np.nan]), "int32"),
        (np.array([np.inf]), "int32"),
        (np.array([2049]), "float16"),
        (np.array([70000]), "float16"),
        (np.array([2**64 - 1], np.uint64), "float32"),
        (np.array([2]), "bool"),
        (np.array([1 + 2j]), "float32"),
        (np.array(["1"]), "float32"),
    ],
)
def test_a_cast_that_would_change_values_is_refused(npz, array, dtype):
    with pytest.raises((DecodeError, GuardError), match="'x'"):
        convert_parts([(".npz", npz(x=array))], PackOptions(arrays="raw", casts=(("x", dtype),)))


numbers = st.sampled_from(["<f2", "<f4", "<f8", "<i1", "<i2", "<i4", "<i8", "<u1", "<u2", "<u4", "|b1"])


@settings(deadline=None, max_examples=300)
@given(numbers.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(max_dims=2, max_side=4))), numbers)
def test_a_cast_is_refused_or_exact_or_between_floats_with_finite_numbers_kept_finite(array, dtype):
    try:
        _, stored = convert_to_one_part([(".x.npy", encode_npy(array))], arrays="raw", casts=(("x", dtype),))
    except SampleError:
        return
    cast = decode_npy(stored)
    if array.dtype.kind == cast.dtype.kind == "f":
        assert np.array_equal(np.isfinite(cast), np.isfinite(array))
    else:
        assert cast.tolist() == array.tolist()


def test_only_the_named_array_is_cast(npz):
    stored = dict(
        convert_parts([(".npz", npz(a=FEATURES, b=FEATURES))], PackOptions(arrays="raw", casts=(("b", "float32"),)))
    )
    assert decode_npy(stored[".a.npy"]).dtype == np.float16
    assert decode_npy(stored[".b.npy"]).dtype == np.float32


# -- images ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("height", "width"), [(150, 225), (225, 150), (200, 200), (100, 301)])
@pytest.mark.parametrize("side", ["long", "short"])
def test_the_selected_side_of_a_large_image_is_shrunk_to_exactly_image_size(height, width, side):
    source = encode_jpeg(make_image(height, width, seed=3), 95)
    _, stored = convert_to_one_part([(".jpg", source)], image_size=64, side=side, quality=95)
    shrunk = decode_jpeg(stored)
    assert (max if side == "long" else min)(shrunk.shape[:2]) == 64
    assert shrunk.shape[0] / shrunk.shape[1] == pytest.approx(height / width, rel=0.02)
    size = (shrunk.shape[1], shrunk.shape[0])
    reference = np.asarray(Image.fromarray(decode_jpeg(source)).resize(size, Image.Resampling.BOX), np.float32)
    assert np.abs(shrunk - reference).mean() < 8  # of 255 levels: both encodings halve the resolution of the colour


@pytest.mark.parametrize("size", [225, 226, 1024])
def test_an_image_that_is_not_larger_than_image_size_keeps_its_bytes(size):
    source = encode_jpeg(make_image(150, 225, seed=3), 90)
    assert convert_to_one_part([(".jpg", source)], image_size=size) == (".jpg", source)


def test_a_lower_quality_gives_fewer_bytes():
    source = encode_jpeg(make_image(150, 225, seed=3), 95)
    sizes = [len(convert_to_one_part([(".jpg", source)], image_size=128, quality=quality)[1]) for quality in (50, 90)]
    assert sizes[0] < sizes[1]


# -- bad samples -------------------------------------------------------------------------------------------------

GOOD_JPEG = encode_jpeg(make_image(150, 225, seed=3), 90)


@pytest.mark.parametrize("options", [{}, {"image_size": 64, "arrays": "raw"}, {"image_size": 64, "arrays": "zstd"}])
@pytest.mark.parametrize(
    ("suffix", "data"),
    [
        (".jpg", b"<html>not found</html>"),
        (".jpg", GOOD_JPEG[: len(GOOD_JPEG) // 2]),
        (".jpg", hostile.lossless_jpeg(64, 64)),
        (".jpg", hostile.twelve_bit_jpeg(64, 64)),
        (".jpg", hostile.jpeg_of_size(65500, 65500)),
        (".npz", hostile.overlapping_npz()),
        (".npz", hostile.encrypted_npz()),
        (".npz", hostile.pickle_npz()[:-10]),
        (".npy", hostile.npy_claiming((1000,), "<f4", b"short")),
        (".npy.zst", b"not zstd at all"),
        (".npy.zst", compress(hostile.npy_claiming((1000,), "<f4", b"short"))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_part_is_refused_even_if_it_is_only_copied(suffix, data, options):
    with pytest.raises(SampleError) as caught:
        convert_parts([(".txt", b"fine"), (suffix, data)], PackOptions(**options))
    assert caught.value.member == suffix
    assert caught.value.advice


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_an_npz_with_a_pickle_is_refused_without_loading_it(codec):
    with pytest.raises(GuardError, match="pickle"):
        convert_parts([("_features.npz", hostile.pickle_npz())], PackOptions(arrays=codec))


def test_a_damaged_image_is_refused_when_it_is_shrunk():
    damaged = bytearray(GOOD_JPEG)
    damaged[len(GOOD_JPEG) // 2 : len(GOOD_JPEG) // 2 + 64] = b"\xff\x01" * 32
    with pytest.raises(PenstockError):
        convert_parts([(".jpg", bytes(damaged))], PackOptions(image_size=64))


def test_two_parts_that_would_get_the_same_suffix_are_refused():
    with pytest.raises(SampleError, match=r"\.features\.npz"):
        convert_parts([(".features.npz", hostile.pickle_npz()), ("_features.npz", hostile.pickle_npz())], PackOptions())


def test_arrays_whose_names_differ_only_in_case_are_refused(npz):
    # webdataset lowers suffixes, and so does `canonical_suffix`: every reader would report duplicates
    with pytest.raises(SampleError, match="would both be stored"):
        convert_parts([(".npz", npz(K=FEATURES, k=FEATURES))], PackOptions(arrays="raw"))


def test_an_npz_without_arrays_is_refused_instead_of_dropped(npz):
    with pytest.raises(SampleError, match="no array"):
        convert_parts([(".jpg", GOOD_JPEG), ("_features.npz", npz())], PackOptions(arrays="raw"))

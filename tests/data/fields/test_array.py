"""The array field: arrays of NPZ and NPY parts, packed or not."""

import io

import numpy as np
import pytest

from penstock.data.fields import Array
from penstock.errors import DecodeError, GuardError, SampleError, SettingError
from penstock.shards.codecs.arrays import encode_npy
from penstock.shards.codecs.zstd import compress

FEATURES = np.arange(24, dtype=np.float16).reshape(2, 3, 4)


def npz(**arrays):
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return memoryview(buffer.getvalue())


def npy(array):
    return memoryview(encode_npy(array))


@pytest.mark.parametrize(
    ("suffix", "data"),
    [
        ("_features.npz", npz(other=np.zeros(3), features=FEATURES)),
        (".features.npz", npz(features=FEATURES)),
        (".features.features.npy", npy(FEATURES)),
        (".features.features.npy.zst", memoryview(compress(encode_npy(FEATURES)))),
    ],
)
def test_an_array_is_read_from_original_and_from_packed_parts(suffix, data):
    field = Array("_features.npz", key="features")
    assert suffix in field.suffixes
    slot = np.empty((2, 3, 4), np.float16)
    field.decode_into(suffix, data, slot)
    assert np.array_equal(slot, FEATURES)
    assert np.array_equal(field.decode_value(suffix, data), FEATURES)


@pytest.mark.parametrize(
    ("declared", "suffixes"),
    [
        (Array(".mask.npy"), (".mask.npy", ".mask.npy.zst")),
        (Array("_mask.npy"), ("_mask.npy", ".mask.npy", ".mask.npy.zst")),
        (Array(".npz", key="a/b"), (".npz", ".a%2Fb.npy", ".a%2Fb.npy.zst")),
    ],
)
def test_declared_suffixes_come_before_packed_ones(declared, suffixes):
    assert declared.suffixes == suffixes


def test_an_array_in_fortran_order_is_read_correctly():
    buffer = io.BytesIO()
    np.save(buffer, np.asfortranarray(FEATURES[0]))
    slot = np.empty((3, 4), np.float16)
    Array(".npy").decode_into(".npy", memoryview(buffer.getvalue()), slot)
    assert np.array_equal(slot, FEATURES[0])


@pytest.mark.parametrize("slot", [np.empty((2, 3, 5), np.float16), np.empty((2, 3, 4), np.float32)])
def test_an_error_about_the_slot_of_an_array_names_the_expected_and_the_found_shape(slot):
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


def test_an_array_of_the_declared_shape_and_dtype_is_accepted():
    found = Array(".npy", shape=(2, 3, 4), dtype="float16").decode_value(".npy", npy(FEATURES))
    assert np.array_equal(found, FEATURES)


@pytest.mark.parametrize(("suffix", "encode"), [(".npy", npy), (".npz", lambda array: npz(a=array))])
def test_a_ragged_array_is_a_copy_that_outlives_the_arena(suffix, encode):
    memory = bytearray(encode(FEATURES))
    found = Array(suffix, key="a" if suffix == ".npz" else None, ragged=True).decode_value(suffix, memoryview(memory))
    memory[:] = bytes(len(memory))
    assert np.array_equal(found, FEATURES)
    assert found.flags.writeable


def test_an_error_about_a_missing_array_names_those_that_the_npz_has():
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
        (".npz", {}, "no key selects an array of '.npz'"),
        (".jpg", {}, "is not an array part"),
        (".npy", {"ragged": True, "shape": (3,)}, "ragged array has no single shape"),
        (".npy", {"dtype": "float17"}, "dtype 'float17' is not known"),
        (".npy", {"key": "x"}, "holds one array: key='x' has no meaning"),
        ((".mask.npy", ".mask.npy.zst"), {"key": "x"}, "has no meaning"),
    ],
)
def test_invalid_array_settings_are_refused(suffix, settings, reason):
    with pytest.raises(SettingError, match=reason):
        Array(suffix, **settings)


def test_a_key_that_only_some_of_the_suffixes_need_is_accepted():
    assert Array((".npz", ".npy"), key="x").decode_value(".npy", npy(FEATURES)).shape == FEATURES.shape

import dataclasses

import pytest

from penstock.errors import SettingError
from penstock.shards.pack.options import PackOptions


def test_the_defaults_change_no_data():
    options = PackOptions()
    assert (options.arrays, options.image_size, options.casts, options.on_bad) == ("keep", None, (), "raise")


def test_options_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PackOptions().quality = 50


@pytest.mark.parametrize(
    "given",
    [
        {"image_size": 1},
        {"image_size": 65535},
        {"quality": 1},
        {"quality": 100},
        {"shard_bytes": 1 << 20},
        {"prefix": "train v2"},
        {"arrays": "raw", "casts": (("features", "float16"), ("edge", "bool"))},
        {"arrays": "zstd", "casts": (("features", ">i4"),)},
        {"side": "short", "on_bad": "skip"},
    ],
)
def test_valid_values_are_kept_as_given(given):
    options = PackOptions(**given)
    assert {name: getattr(options, name) for name in given} == given


@pytest.mark.parametrize(
    "given",
    [
        {"image_size": 0},
        {"image_size": -5},
        {"image_size": 65536},
        {"quality": 0},
        {"quality": 101},
        {"shard_bytes": (1 << 20) - 1},
        {"prefix": ""},
        {"prefix": "a/b"},
        {"prefix": ".hidden"},
        {"arrays": "deflate"},
        {"arrays": "RAW"},
        {"side": "both"},
        {"on_bad": "ignore"},
    ],
)
def test_an_invalid_value_is_refused_with_the_name_of_the_option(given):
    (name,) = given
    with pytest.raises(SettingError, match=name.removesuffix("_bytes").replace("_", "[ _]")):
        PackOptions(**given)


@pytest.mark.parametrize("dtype", ["", "floaty", "O", "f4,f4", "(2,f4", "S8", "datetime64[s]", "c8", "V4", "a\0b"])
def test_a_cast_to_a_dtype_that_is_not_numeric_is_refused(dtype):
    with pytest.raises(SettingError, match="features") as caught:
        PackOptions(arrays="raw", casts=(("features", dtype),))
    assert "float16" in caught.value.advice


def test_a_cast_of_arrays_that_are_kept_is_refused():
    with pytest.raises(SettingError, match="raw") as caught:
        PackOptions(casts=(("features", "float16"),))
    assert caught.value.advice


def test_two_casts_of_one_array_are_refused():
    with pytest.raises(SettingError, match="'features'"):
        PackOptions(arrays="raw", casts=(("features", "float16"), ("features", "float32")))

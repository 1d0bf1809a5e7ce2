"""The names of members in packed shards, which webdataset and Penstock must split into the same keys and suffixes."""

import pytest
from webdataset.tariterators import base_plus_ext

from penstock.shards.pack.convert import array_suffix, packed_key, packed_suffix
from penstock.shards.pairing import split_at_dot


@pytest.mark.parametrize(
    ("suffix", "packed"),
    [
        (".jpg", ".jpg"),
        (".JPEG", ".JPEG"),
        ("_features.npz", ".features.npz"),
        ("_edge.npy", ".edge.npy"),
        (".seg.png", ".seg.png"),
        (".v2_features.npz", ".v2_features.npz"),
        ("", ""),
    ],
)
def test_a_suffix_that_begins_with_an_underscore_gets_a_dot_instead(suffix, packed):
    assert packed_suffix(suffix) == packed


@pytest.mark.parametrize(
    ("suffix", "array", "codec", "packed"),
    [
        ("_features.npz", "edge", "raw", ".features.edge.npy"),
        ("_features.npz", "edge", "zstd", ".features.edge.npy.zst"),
        (".npz", "x", "raw", ".x.npy"),
        (".CALIB.NPZ", "K", "raw", ".CALIB.K.npy"),
        ("_f.npz", "a/b", "raw", ".f.a%2Fb.npy"),
        ("_f.npz", "größe", "raw", ".f.gr%C3%B6%C3%9Fe.npy"),
        ("_f.npz", "a b", "zstd", ".f.a%20b.npy.zst"),
    ],
)
def test_the_suffix_of_an_array_has_the_names_of_its_part_and_of_the_array(suffix, array, codec, packed):
    assert array_suffix(suffix, array, codec) == packed


@pytest.mark.parametrize(
    ("key", "packed"),
    [("0001", "0001"), ("a.b", "a%2Eb"), ("v1.0/0001", "v1.0/0001"), ("v1.0/a.b.c", "v1.0/a%2Eb%2Ec")],
)
def test_dots_in_the_last_component_of_a_key_are_escaped(key, packed):
    assert packed_key(key) == packed


@pytest.mark.parametrize("key", ["0001", "a.b", "v1.0/0001", "v1.0/a.b", "./0001", "日本/猫.2", "a_b"])
@pytest.mark.parametrize("suffix", [".jpg", "_features.npz", ".seg.png"])
def test_webdataset_and_penstock_split_a_packed_name_alike(key, suffix):
    name = packed_key(key) + packed_suffix(suffix)
    assert split_at_dot(name) == (packed_key(key), packed_suffix(suffix))
    assert base_plus_ext(name) == (packed_key(key), packed_suffix(suffix)[1:])

"""Names in packed shards: webdataset and we must see the same keys in them."""

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
def test_an_underscore_suffix_becomes_a_dotted_one(suffix, packed):
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
def test_an_array_is_named_after_its_part_and_itself(suffix, array, codec, packed):
    assert array_suffix(suffix, array, codec) == packed


@pytest.mark.parametrize(
    ("key", "packed"),
    [("0001", "0001"), ("a.b", "a%2Eb"), ("v1.0/0001", "v1.0/0001"), ("v1.0/a.b.c", "v1.0/a%2Eb%2Ec")],
)
def test_dots_stay_in_folders_only(key, packed):
    assert packed_key(key) == packed


@pytest.mark.parametrize("key", ["0001", "a.b", "v1.0/0001", "v1.0/a.b", "./0001", "日本/猫.2", "a_b"])
@pytest.mark.parametrize("suffix", [".jpg", "_features.npz", ".seg.png"])
def test_webdataset_and_we_split_a_packed_name_alike(key, suffix):
    name = packed_key(key) + packed_suffix(suffix)
    assert split_at_dot(name) == (packed_key(key), packed_suffix(suffix))
    assert base_plus_ext(name) == (packed_key(key), packed_suffix(suffix)[1:])

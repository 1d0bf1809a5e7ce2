import pytest

from penstock.bench.fields import BenchmarkField, guess_fields, parse_field, parse_fields
from penstock.errors import SettingError
from penstock.testing import IMAGENET, MULTICAMERA, SA1B, make_shards, sample_parts, tar_bytes


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("image=.jpg:1024", BenchmarkField("image", "image", ".jpg", size=1024)),
        ("image=_cam.png", BenchmarkField("image", "image", "_cam.png", size=64)),
        ("edge=_features.npz:edge", BenchmarkField("edge", "array", "_features.npz", key="edge")),
        ("mask=.mask.npy", BenchmarkField("mask", "array", ".mask.npy")),
    ],
)
def test_a_field_has_a_name_a_suffix_and_a_size_or_key(text, field):
    parsed = parse_field(text, size=64)
    assert (parsed.name, parsed.kind, parsed.suffix, parsed.key) == (field.name, field.kind, field.suffix, field.key)
    if field.kind == "image":
        assert parsed.size == field.size


@pytest.mark.parametrize("text", ["image=.jpg:1024", "edge=_features.npz:edge", "mask=.mask.npy"])
def test_the_text_of_a_field_is_what_was_parsed(text):
    assert str(parse_field(text)) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (".jpg", "is not NAME=SUFFIX"),
        ("image=", "is not NAME=SUFFIX"),
        ("image=.jpg:big", "'big' in field 'image=.jpg:big' is no size"),
        ("image=.jpg:0", "'0' in field"),
        ("edge=.npz", "which array of '.npz'"),
        ("mask=.npy:mask", "holds one array"),
        ("note=.json", "neither an image nor"),
    ],
)
def test_an_invalid_field_is_refused_with_a_reason(text, reason):
    with pytest.raises(SettingError, match=reason):
        parse_field(text)


def test_two_fields_with_the_same_name_are_refused():
    with pytest.raises(SettingError, match="two fields are named 'a'"):
        parse_fields(["a=.jpg", "a=.png"])


def test_images_and_every_array_are_guessed(tmp_path):
    (shard,) = make_shards(tmp_path, SA1B, samples=2, order="grouped", scale=0.05)
    guess = guess_fields(shard, size=96)
    assert [str(field) for field in guess.fields] == [
        "image=.jpg:96",
        "features=_features.npz:features",
        "edge=_features.npz:edge",
    ]
    assert guess.left_out == ()


def test_parts_that_are_left_out_are_listed(tmp_path):
    (shard,) = make_shards(tmp_path, IMAGENET, samples=2, scale=0.1)
    guess = guess_fields(shard)
    assert [field.name for field in guess.fields] == ["image"]
    assert guess.left_out == (".cls",)


def test_several_images_are_named_by_their_suffixes(tmp_path):
    (shard,) = make_shards(tmp_path, MULTICAMERA, samples=1, scale=0.1, compression="gz")
    names = [field.name for field in guess_fields(shard).fields]
    assert names[:2] == ["front", "front_left"]
    assert names[-2:] == ["intrinsics", "extrinsics"]


def test_a_name_that_exists_already_gets_a_number(tmp_path):
    npz = sample_parts(SA1B, 0, scale=0.05)["_features.npz"]
    (tmp_path / "a.tar").write_bytes(tar_bytes([("1.x.npz", npz), ("1.y.npz", npz)]))
    fields = guess_fields(tmp_path / "a.tar").fields
    assert [(field.name, field.suffix, field.key) for field in fields] == [
        ("features", ".x.npz", "features"),
        ("edge", ".x.npz", "edge"),
        ("features_2", ".y.npz", "features"),
        ("edge_2", ".y.npz", "edge"),
    ]


def test_a_shard_without_images_and_arrays_is_refused(tmp_path):
    (tmp_path / "a.tar").write_bytes(tar_bytes([("1.json", b"{}")]))
    with pytest.raises(SettingError, match="no image and no array"):
        guess_fields(tmp_path / "a.tar")

import json
import math
from datetime import date, datetime
from decimal import Decimal

import numpy as np
import pytest
from PIL import Image
from tests.support.record_files import encoded_image

from penstock.errors import SampleError, SettingError
from penstock.shards.codecs.arrays import decode_npy
from penstock.shards.pack.records.columns import (
    FoundColumn,
    RecordColumn,
    assign_roles,
    encode_png,
    image_ending,
    record_parts,
)


def columns_of(*found, stated=()):
    columns = assign_roles([FoundColumn(*column) for column in found], stated, "file")
    return {column.name: (column.role, column.suffix) for column in columns}


# -- roles and suffixes ------------------------------------------------------------------------------------------------


def test_the_only_column_of_a_role_has_the_short_suffix():
    found = [("photo", "image"), ("class", "integer"), ("caption", "string"), ("v", "array"), ("raw", "bytes")]
    assert columns_of(*found) == {
        "photo": ("image", ""),
        "class": ("label", ".cls"),
        "caption": ("text", ".txt"),
        "v": ("array", ".npy"),
        "raw": ("bytes", ".bin"),
    }


def test_of_several_columns_of_a_role_only_the_one_named_after_it_has_the_short_suffix():
    found = [("image", "image"), ("mask", "image"), ("label", "integer"), ("target", "integer"), ("a", "array")]
    assert columns_of(*found, ("b", "array")) == {
        "image": ("image", ""),
        "mask": ("image", ".mask"),
        "label": ("label", ".cls"),
        "target": ("label", ".target.cls"),
        "a": ("array", ".a.npy"),
        "b": ("array", ".b.npy"),
    }


def test_numbers_text_and_nested_values_that_are_no_label_go_into_json_together():
    found = [("width", "integer"), ("url", "string"), ("boxes", "other"), ("image", "image")]
    assert {suffix for role, suffix in columns_of(*found).values() if role == "json"} == {".json"}
    assert columns_of(*found)["width"] == columns_of(*found)["url"] == ("json", ".json")


def test_an_integer_column_with_class_names_is_a_label_whatever_its_name():
    (column,) = assign_roles([FoundColumn("breed", "integer", ("cat", "dog"))], (), "file")
    assert (column.role, column.suffix, column.classes_file) == ("label", ".cls", "classes.txt")


def test_two_labels_have_a_file_of_classes_each():
    found = [FoundColumn("fine", "integer", ("a", "b")), FoundColumn("coarse", "integer", ("c",))]
    columns = assign_roles(found, (), "file")
    assert [(column.suffix, column.classes_file) for column in columns] == [
        (".fine.cls", "classes.fine.txt"),
        (".coarse.cls", "classes.coarse.txt"),
    ]


def test_names_are_escaped_in_suffixes():
    found = [("../image/a", "image"), ("b c", "image")]
    assert [suffix for _, suffix in columns_of(*found).values()] == ["...%2Fimage%2Fa", ".b%20c"]


def test_only_stated_columns_are_packed_and_their_roles_win():
    found = [("x", "bytes"), ("y", "integer"), ("z", "string")]
    assert columns_of(*found, stated=[("y", "label"), ("x", None)]) == {"y": ("label", ".cls"), "x": ("bytes", ".bin")}


def test_a_stated_column_that_does_not_exist_is_refused_with_the_names_of_those_that_do():
    with pytest.raises(SettingError, match="no column 'imge'") as caught:
        columns_of(("image", "image"), ("label", "integer"), stated=[("imge", None)])
    assert "image, label" in caught.value.advice


def test_a_column_that_cannot_be_packed_is_refused_and_the_advice_names_the_others():
    found = [FoundColumn("image", "image"), FoundColumn("meta", "bytes", refusal="is pickled")]
    with pytest.raises(SettingError, match="column 'meta' is pickled") as caught:
        assign_roles(found, (), "file")
    assert "--column image" in caught.value.advice
    assert "--column meta" not in caught.value.advice
    assert [column.name for column in assign_roles(found, [("image", None)], "file")] == ["image"]
    with pytest.raises(SettingError, match="is pickled"):
        assign_roles(found, [("meta", "bytes")], "file")


def test_two_columns_of_the_same_name_are_refused():
    with pytest.raises(SettingError, match="two columns of the same name"):
        columns_of(("a", "image"), ("a", "integer"))


# -- values ------------------------------------------------------------------------------------------------------------


def part_of(role, value):
    (part,) = record_parts([RecordColumn("c", role, "" if role == "image" else ".x")], {"c": value})
    return part


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_the_ending_of_an_image_follows_from_its_bytes(kind):
    endings = {"JPEG": ".jpg", "PNG": ".png", "WEBP": ".webp", "GIF": ".gif", "BMP": ".bmp", "TIFF": ".tif"}
    data = encoded_image(1, kind)
    assert part_of("image", data) == (endings.get(kind, ".ppm"), data)


@pytest.mark.parametrize("data", [b"<html>", b"\x80\x04pickle", b"\xff\xd8", b"x"])
def test_bytes_that_are_no_image_are_an_error_that_shows_how_they_begin(data):
    assert image_ending(data) is None
    with pytest.raises(SampleError, match=data[:8].hex(" ")):
        part_of("image", data)


@pytest.mark.parametrize(
    ("value", "text"),
    [(7, b"7"), (-1, b"-1"), (np.int64(5), b"5"), (True, b"1"), (np.True_, b"1"), (0.5, b"0.5"), ("ant", b"ant")],
)
def test_labels_are_stored_as_text(value, text):
    assert part_of("label", value) == (".x", text)


@pytest.mark.parametrize("array", [np.arange(6, dtype=np.int16).reshape(2, 3), np.float32(2.5), [1.5, 2.5], [True]])
def test_arrays_are_stored_as_npy_of_their_own_dtype(array):
    stored = decode_npy(part_of("array", array)[1])
    assert stored.dtype == np.asarray(array).dtype
    assert np.array_equal(stored, array)


@pytest.mark.parametrize(
    ("role", "value"),
    [
        ("label", [1]),
        ("label", None),
        ("text", ""),
        ("text", 5),
        ("text", b"\xff"),
        ("text", "\ud800"),
        ("image", b""),
        ("image", "text"),
        ("bytes", "text"),
        ("array", [[1], [2, 3]]),
        ("array", ["a"]),
        ("array", [None]),
        ("image", np.zeros((2, 2), np.float32)),
        ("image", np.zeros((0, 2), np.uint8)),
        ("image", np.zeros((2, 2, 2), np.uint8)),
        ("json", {1j}),
        ("json", b"\xff"),
    ],
)
def test_a_value_that_its_role_does_not_allow_is_an_error_that_names_the_column(role, value):
    with pytest.raises(SampleError, match="column 'c'"):
        part_of(role, value)


def test_a_missing_value_is_an_error_except_in_json():
    columns = [RecordColumn("a", "json", ".json"), RecordColumn("b", "json", ".json")]
    assert record_parts(columns, {"b": None}) == [(".json", b'{"b": null}')]
    assert record_parts(columns, {}) == []
    with pytest.raises(SampleError, match="has no value"):
        record_parts([RecordColumn("c", "label", ".cls")], {})


def test_json_holds_every_value_exactly():
    values = {
        "i": 2**53 + 1,
        "f": 0.1,
        "f32": np.float32(0.1),
        "nan": math.nan,
        "text": "naïve \n \ud800",
        "bytes": "ü".encode(),
        "list": [np.int8(1), [2]],
        "array": np.array([1.5]),
        "day": date(2024, 2, 29),
        "time": datetime(2024, 2, 29, 1, 2),
        "decimal": Decimal("1.10"),
    }
    ((_, data),) = record_parts([RecordColumn(name, "json", ".json") for name in values], values)
    parsed = json.loads(data)
    assert parsed.pop("nan") != parsed.get("nan")
    assert parsed == {
        "i": 2**53 + 1,
        "f": 0.1,
        "f32": float(np.float32(0.1)),
        "text": "naïve \n \ud800",
        "bytes": "ü",
        "list": [1, [2]],
        "array": [1.5],
        "day": "2024-02-29",
        "time": "2024-02-29T01:02:00",
        "decimal": "1.10",
    }


def test_values_nested_too_deep_for_json_are_an_error():
    value = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(SampleError, match="column 'c'"):
        part_of("json", value)


@pytest.mark.parametrize(
    "pixels",
    [
        np.arange(12, dtype=np.uint8).reshape(3, 4),
        np.arange(36, dtype=np.uint8).reshape(3, 4, 3),
        np.arange(48, dtype=np.uint8).reshape(3, 4, 4),
        np.arange(12, dtype=np.uint8).reshape(3, 4, 1),
        np.arange(12, dtype=np.uint16).reshape(3, 4) * 5000,
        np.arange(12, dtype=">u2").reshape(3, 4) * 5000,
    ],
    ids=lambda pixels: f"{pixels.dtype}{pixels.shape}",
)
def test_pixels_are_stored_as_a_png_without_loss(pixels, tmp_path):
    (tmp_path / "a.png").write_bytes(encode_png(pixels))
    with Image.open(tmp_path / "a.png") as image:
        assert np.array_equal(np.array(image), pixels.squeeze())

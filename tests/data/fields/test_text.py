"""The fields without a shape, and labels."""

import numpy as np
import pytest

from penstock.data.fields import Json, Label, Raw, Text
from penstock.errors import DecodeError, SampleError


def test_json_is_parsed():
    assert Json(".json").decode_value(".json", memoryview(b'{"a": [1, "\xc3\xbc"]}')) == {"a": [1, "ü"]}


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe\xff", b"[" * 200_000])
def test_invalid_json_is_a_bad_sample(data):
    with pytest.raises(DecodeError, match="is not valid JSON"):
        Json(".json").decode_value(".json", memoryview(data))


def test_text_is_not_changed():
    assert Text(".txt").decode_value(".txt", memoryview(" grün\n".encode())) == " grün\n"


def test_invalid_utf8_is_a_bad_sample():
    with pytest.raises(DecodeError, match="is not valid UTF-8"):
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
def test_a_label_that_is_not_a_whole_number_is_a_bad_sample(key, data):
    with pytest.raises(DecodeError, match="holds no label"):
        Label(".cls", key=key).decode_value(".cls", memoryview(data))

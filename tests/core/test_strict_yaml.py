"""YAML of plain values: what is accepted, what is refused, and that what is written is read."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.strict_yaml import MAX_DEPTH, read_yaml, to_plain_values, write_yaml
from penstock.errors import SettingError

NUMBERS = st.integers(-(2**62), 2**62) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def refusal(text):
    with pytest.raises(SettingError) as caught:
        read_yaml(text if isinstance(text, bytes) else text.encode())
    return str(caught.value)


@given(VALUES)
def test_a_written_value_is_read_unchanged(value):
    assert read_yaml(write_yaml(value).encode()) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 2024-01-01", {"a": "2024-01-01"}),
        ("a: [1, 2.5, true, null, x]", {"a": [1, 2.5, True, None, "x"]}),
        ("<<: {a: 1}", {"<<": {"a": 1}}),
        ("a: =", {"a": "="}),
        ("", None),
    ],
)
def test_plain_values_are_read_without_conversions(text, value):
    assert read_yaml(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a: !!python/object/apply:os.system [ls]", "tags are not allowed"),
        ("a: !!binary aGVsbG8=", "tags are not allowed"),
        ("a: !!set {x}", "tags are not allowed"),
        ("a: ! x", "tags are not allowed"),
        ("a: &x [1]\nb: *x", "anchors and aliases"),
        ("a: &x [*x]", "anchors and aliases"),
        ("a: 1\na: 2", "'a' is repeated"),
        ("b: {a: 1, a: 2}", "'a' is repeated"),
        ("? [1, 2]\n: 3", "does not read as YAML"),
        ("a: [1", "does not read as YAML"),
        ("a: 1\n--- \nb: 2", "does not read as YAML"),
        ("1: 2", "a key is a int"),
        ("a: {b: {null: 2}}", "a.b: a key is a NoneType"),
        ("a: .inf", "a: is infinite"),
        ("a: [1, .nan]", "a.1: is infinite"),
        ("a: 0x" + "f" * 5000, "a: is infinite, too large"),
        ("a: " + "9" * 5000, "does not read as YAML"),
        ("a: 0b_", "does not read as YAML"),
        ('a: "\\U7fffffff"', "does not read as YAML"),
        ("[" * 5000, "does not read as YAML"),
        ("[" * 40 + "]" * 40, f"nested deeper than {MAX_DEPTH}"),
        (b"\xff\xfe\x00", "does not read as YAML"),
        (b"a: \x00", "does not read as YAML"),
    ],
)
def test_other_documents_are_refused_with_the_reason(text, word):
    message = refusal(text)
    assert word in message
    assert len(message) < 500


def test_a_long_key_does_not_make_a_long_message():
    assert len(refusal("? " + "k" * 5000 + "\n: 1\n? " + "k" * 5000 + "\n: 2")) < 400


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    try:
        value = read_yaml(data)
    except SettingError:
        return
    assert to_plain_values(value) == value


def test_numpy_numbers_become_python_numbers():
    value = to_plain_values({"a": np.float64(1.5), "b": np.int64(3), "c": (np.bool_(True),)})
    assert value == {"a": 1.5, "b": 3, "c": [True]}
    assert [type(value["a"]), type(value["b"]), type(value["c"][0])] == [float, int, bool]


def test_an_object_is_refused_with_its_place():
    with pytest.raises(SettingError, match=r"a\.0: a object is not a plain value"):
        to_plain_values({"a": [object()]})


def test_letters_of_all_scripts_stay_readable_and_invisible_characters_are_escaped():
    assert "数据集" in write_yaml({"name": "数据集"})
    hidden = write_yaml({"name": "a\u202eb\x1b[31m"})
    assert "\u202e" not in hidden
    assert "\x1b" not in hidden
    assert read_yaml(hidden.encode()) == {"name": "a\u202eb\x1b[31m"}


def test_a_list_that_occurs_twice_is_written_twice():
    shared = [1, 2]
    assert "&" not in write_yaml({"a": shared, "b": shared})

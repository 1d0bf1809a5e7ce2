"""Plain YAML: what it takes, what it refuses, and that what is written is read."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.strict_yaml import DEEPEST, read_yaml, to_plain_values, write_yaml
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
def test_what_is_written_is_read(value):
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
def test_plain_values_and_no_surprises(text, value):
    assert read_yaml(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a: !!python/object/apply:os.system [ls]", "tags are not used"),
        ("a: !!binary aGVsbG8=", "tags are not used"),
        ("a: !!set {x}", "tags are not used"),
        ("a: ! x", "tags are not used"),
        ("a: &x [1]\nb: *x", "anchors and aliases"),
        ("a: &x [*x]", "anchors and aliases"),
        ("a: 1\na: 2", "'a' is there twice"),
        ("b: {a: 1, a: 2}", "'a' is there twice"),
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
        ("[" * 40 + "]" * 40, f"nested deeper than {DEEPEST}"),
        (b"\xff\xfe\x00", "does not read as YAML"),
        (b"a: \x00", "does not read as YAML"),
    ],
)
def test_everything_else_is_refused_with_the_reason(text, word):
    said = refusal(text)
    assert word in said
    assert len(said) < 500


def test_a_long_key_does_not_make_a_long_message():
    assert len(refusal("? " + "k" * 5000 + "\n: 1\n? " + "k" * 5000 + "\n: 2")) < 400


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    try:
        found = read_yaml(data)
    except SettingError:
        return
    assert to_plain_values(found) == found


def test_numpys_numbers_become_pythons():
    found = to_plain_values({"a": np.float64(1.5), "b": np.int64(3), "c": (np.bool_(True),)})
    assert found == {"a": 1.5, "b": 3, "c": [True]}
    assert [type(found["a"]), type(found["b"]), type(found["c"][0])] == [float, int, bool]


def test_what_no_file_can_hold_is_refused_by_its_place():
    with pytest.raises(SettingError, match=r"a\.0: a object is no plain value"):
        to_plain_values({"a": [object()]})


def test_letters_of_all_scripts_stay_readable_and_what_cannot_be_seen_is_spelled_out():
    assert "数据集" in write_yaml({"name": "数据集"})
    hidden = write_yaml({"name": "a\u202eb\x1b[31m"})
    assert "\u202e" not in hidden
    assert "\x1b" not in hidden
    assert read_yaml(hidden.encode()) == {"name": "a\u202eb\x1b[31m"}


def test_a_list_that_is_there_twice_is_written_twice():
    shared = [1, 2]
    assert "&" not in write_yaml({"a": shared, "b": shared})

"""The label field: numbers and class names, from text and JSON, and what is refused."""

import io
import pickle
import tarfile

import numpy as np
import pytest

import penstock
from penstock.data.fields import Label
from penstock.data.fields.base import SampleContext
from penstock.errors import DecodeError, SettingError
from penstock.testing import tar_bytes

ANIMALS = ["cat", "dog", "grey seal"]


def read(field, data):
    """Return what a field makes of a part, in a slot and as a value."""
    value = field.decode_value(".x", memoryview(data), SampleContext())
    if not field.fixed_shape:
        return value
    slot = np.zeros((), field.dtype)
    field.decode_into(".x", memoryview(data), slot, SampleContext())
    assert (slot, slot.dtype) == (value, value.dtype)
    return value.item()


def refusal(field, data):
    with pytest.raises(DecodeError) as caught:
        read(field, data)
    assert caught.value.stage == "decode"
    return caught.value


# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "data", "expected"),
    [
        (None, b"7", 7),
        (None, b"+7", 7),
        (None, b"007", 7),
        (None, b" -12\n", -12),
        (None, b"3\r\n\r\n", 3),
        (None, b"\xef\xbb\xbf3\n", 3),
        (None, "3\r\n".encode("utf-16"), 3),
        (None, "\ufeff41\n".encode("utf-16-be"), 41),
        ("id", b'{"id": 3}', 3),
        ("id", b'\xef\xbb\xbf{"id": 3}', 3),
        ("id", b'{"id": 9223372036854775807}', 2**63 - 1),
        ("meta.label", b'{"meta": {"label": 5}, "label": 6}', 5),
        ("objects.1.label", b'{"objects": [{"label": 5}, {"label": 6}]}', 6),
        ("meta.label", b'{"meta": {"label": 5}, "meta.label": 6}', 6),
        ("0", b"[4, 5]", 4),
    ],
)
def test_a_label_is_a_whole_number(key, data, expected):
    assert read(Label(".cls", key=key), data) == expected


@pytest.mark.parametrize(
    ("key", "data", "found"),
    [
        (None, b"", "''"),
        (None, b" \r\n\t", "''"),
        (None, b"\xef\xbb\xbf", "''"),
        (None, b"cat", "'cat'"),
        (None, b"1.5", "'1.5'"),
        (None, b"1_0", "'1_0'"),
        (None, b"3 4", "'3 4'"),
        (None, b"9" * 30, "999999999999999999999999999999"),
        (None, b"9" * 9000, "'9999"),
        ("id", b"[1]", None),
        ("id", b'{"id": 1.0}', "1.0"),
        ("id", b'{"id": true}', "True"),
        ("id", b'{"id": "7"}', "'7'"),
        ("id", b'{"id": null}', "None"),
        ("id", b'{"id": [7]}', "[7]"),
        ("id", b'{"id": {"a": 7}}', "an object with the keys ['a']"),
        ("id", b'{"id": 9223372036854775808}', "9223372036854775808"),
    ],
)
def test_a_label_that_is_no_whole_number_is_an_error_that_shows_what_was_found(key, data, found):
    error = refusal(Label(".cls", key=key), data)
    if found is not None:
        assert error.reason.startswith(f"the label is {found}")
        assert error.reason.endswith("where a whole number of int64 is expected")
    assert len(error.reason) < 200


@pytest.mark.parametrize("data", [b"\xff\xd8\xff\xe0\x00\x10JFIF" * 1000, b"\xff\xfe3", b"gr\xfcn"])
def test_a_part_that_is_no_text_is_an_error_that_says_so(data):
    error = refusal(Label(".cls"), data)
    assert "is not text" in error.reason
    assert len(error.reason) < 200


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"{}", "the JSON has no 'meta.label': 'meta' is not in an object with the keys []"),
        (b'{"meta": {"lable": 1}}', "'label' is not in an object with the keys ['lable']"),
        (b'{"meta": 7}', "'label' is not in 7"),
        (b'{"meta": [7]}', "'label' is not in 7"),
        (b"7", "'meta' is not in 7"),
        (b"{", "is not valid JSON"),
        (b"[" * 200_000, "is not valid JSON"),
    ],
)
def test_an_error_about_a_missing_key_says_what_there_is(data, reason):
    assert reason in refusal(Label(".json", key="meta.label"), data).reason


@pytest.mark.parametrize(
    ("dtype", "data", "expected"),
    [
        ("float32", b"0.1\n", np.float32(0.1)),
        ("float32", b"3", 3.0),
        ("float32", b"-1e-3", np.float32(-0.001)),
        ("float64", b"0.1", 0.1),
        ("int32", b"-5", -5),
    ],
)
def test_labels_have_the_declared_dtype(dtype, data, expected):
    assert read(Label(".x", dtype=dtype), data) == expected
    assert read(Label(".x", key="a", dtype=dtype), b'{"a": %b}' % data) == expected


@pytest.mark.parametrize(
    ("dtype", "data"),
    [
        ("float32", b"nan"),
        ("float32", b"inf"),
        ("float32", b"1e39"),
        ("float32", b"-1e39"),
        ("float64", b"9" * 400),
        ("float32", b"yes"),
        ("int32", b"2147483648"),
    ],
)
def test_a_number_that_the_dtype_does_not_hold_is_refused(dtype, data):
    assert f"number of {dtype} is expected" in refusal(Label(".x", dtype=dtype), data).reason


def test_a_json_number_that_the_dtype_does_not_hold_is_refused():
    for data in (b'{"a": NaN}', b'{"a": Infinity}', b'{"a": 1e39}', b'{"a": %b}' % (b"9" * 400), b'{"a": true}'):
        assert "a finite number of float32 is expected" in refusal(Label(".x", key="a", dtype="float32"), data).reason


# -- class names ------------------------------------------------------------------------------------------------------


def test_class_names_become_their_positions():
    field = Label((".txt", ".cls"), classes=ANIMALS)
    assert [read(field, name.encode()) for name in ("cat", "dog\n", "\ufeffgrey seal")] == [0, 1, 2]
    assert read(Label(".json", key="animal", classes=tuple(ANIMALS)), b'{"animal": "dog"}') == 1
    assert read(Label(".cls", classes=["0", "1", "10"]), b"10\n") == 2


@pytest.mark.parametrize(("key", "data"), [(None, b"cow"), (None, b"1"), (None, b""), ("a", b'{"a": 1}')])
def test_an_unknown_class_is_an_error_that_names_classes(key, data):
    error = refusal(Label(".cls", key=key, classes=ANIMALS), data)
    assert error.reason.endswith("where one of 3 class names is expected")
    assert error.advice == "The classes are cat, dog, grey seal"


def test_an_error_names_a_few_of_many_classes():
    error = refusal(Label(".cls", classes=[f"n{number:08}" for number in range(21_000)]), b"cow")
    assert len(str(error)) < 300


def test_classes_are_read_once_from_a_file_so_that_workers_need_none(tmp_path):
    path = tmp_path / "classes.txt"
    path.write_bytes("\ufeffcat\r\ndog\r\ngrey seal\r\n\r\n".encode())
    field = Label(".cls", classes=path)
    sent = pickle.dumps(field)
    path.unlink()
    assert pickle.loads(sent) == field == Label(".cls", classes=ANIMALS)
    assert read(pickle.loads(sent), b"grey seal") == 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"cat\n\ndog\n", "class 1 is '', which is not a name"),
        (b"cat\ndog\ncat\n", "class 2 has the name 'cat', which another class has too"),
        (b"\n", "class 0 is ''"),
        (b"\xff\xfec\x00", "cannot be read"),
    ],
)
def test_an_ambiguous_file_of_classes_is_refused(tmp_path, content, reason):
    path = tmp_path / "classes.txt"
    path.write_bytes(content)
    with pytest.raises(SettingError, match=reason):
        Label(".cls", classes=str(path))


def test_a_missing_file_of_classes_is_refused_with_its_name(tmp_path):
    with pytest.raises(SettingError, match=r"no\.txt' cannot be read"):
        Label(".cls", classes=tmp_path / "no.txt")


# -- optional labels --------------------------------------------------------------------------------------------------


def test_a_missing_label_is_the_fill_or_none():
    assert Label(".cls", optional=True, fill=-100).missing_value(SampleContext()) == np.int64(-100)
    filled = Label(".cls", optional=True, fill=0.5, dtype="float32").missing_value(SampleContext())
    assert (filled, filled.dtype) == (0.5, np.float32)
    listed = Label(".cls", optional=True)
    assert not listed.fixed_shape
    assert listed.missing_value(SampleContext()) is None
    assert type(read(listed, b"7")) is int


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"dtype": "int8"}, "dtype 'int8' is not known"),
        ({"classes": []}, "classes has no names"),
        ({"classes": ["a", 7]}, "class 1 is 7, which is not a name"),
        ({"classes": ["a"], "dtype": "float32"}, "has no meaning"),
        ({"fill": -1}, "is for samples that lack the part"),
        ({"fill": 0.5, "optional": True}, "fill=0.5 is not a whole number of int64"),
        ({"fill": float("nan"), "optional": True, "dtype": "float32"}, "fill=nan is not a finite number"),
        ({"fill": 2**31, "optional": True, "dtype": "int32"}, "is not a whole number of int32"),
    ],
)
def test_invalid_label_settings_are_refused(settings, reason):
    with pytest.raises(SettingError, match=reason):
        Label(".cls", **settings)


# -- in a loader ------------------------------------------------------------------------------------------------------


@pytest.fixture
def shard(tmp_path):
    """A shard of texts, some of which have a label; one label is wrong."""
    members = [(f"{number:04}.txt", b"text") for number in range(12)]
    members += [(f"{number:04}.cls", b"%d\n" % number) for number in range(12) if number % 3]
    members = [(name, b"dog" if name == "0007.cls" else data) for name, data in members]
    path = tmp_path / "labels.tar"
    path.write_bytes(tar_bytes(members))
    with tarfile.open(fileobj=io.BytesIO(path.read_bytes())) as tar:
        assert len(tar.getnames()) == 20
    return path


@pytest.mark.parametrize("executor", ["thread", "process"])
@pytest.mark.parametrize("fill", [-1, None])
def test_samples_without_a_label_get_the_fill_and_a_wrong_label_is_skipped_with_its_place(
    make_loader, shard, tmp_path, executor, fill
):
    bad = tmp_path / "bad.jsonl"
    fields = {"text": penstock.Text(".txt"), "label": Label(".cls", optional=True, fill=fill)}
    settings = {"on_error": "skip", "max_bad_fraction": 1, "bad_samples_path": str(bad), "executor": executor}
    (batch,) = make_loader(shard, fields, batch_size=12, **settings)
    labels = batch["label"] if fill is None else batch["label"].tolist()
    assert labels == [number if number % 3 else fill for number in range(12) if number != 7]
    assert '"member":"0007.cls"' in bad.read_text()
    assert "the label is 'dog' where a whole number of int64 is expected" in bad.read_text()

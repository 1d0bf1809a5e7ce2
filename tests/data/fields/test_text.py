"""The fields without a shape."""

import numpy as np
import pytest

from penstock.data.fields import Json, Raw, Text
from penstock.data.fields.base import SampleContext
from penstock.errors import DecodeError, SampleError, SettingError
from penstock.testing import tar_bytes


def test_json_is_parsed():
    assert Json(".json").decode_value(".json", memoryview(b'{"a": [1, "\xc3\xbc"]}'), SampleContext()) == {
        "a": [1, "ü"]
    }


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe\xff", b"[" * 200_000])
def test_invalid_json_is_a_bad_sample(data):
    with pytest.raises(DecodeError, match="is not valid JSON"):
        Json(".json").decode_value(".json", memoryview(data), SampleContext())


def test_text_is_not_changed():
    assert Text(".txt").decode_value(".txt", memoryview(" grün\n".encode()), SampleContext()) == " grün\n"


def test_invalid_utf8_is_a_bad_sample():
    with pytest.raises(DecodeError, match="is not valid UTF-8"):
        Text(".txt").decode_value(".txt", memoryview(b"gr\xfcn"), SampleContext())


def test_raw_bytes_are_a_copy():
    memory = bytearray(b"abc")
    found = Raw(".bin").decode_value(".bin", memoryview(memory), SampleContext())
    memory[:] = b"xyz"
    assert found == b"abc"


@pytest.mark.parametrize("field", [Json(".json"), Text(".txt"), Raw(".bin")])
def test_a_field_without_a_shape_has_no_slot(field):
    with pytest.raises(SampleError, match="no slot"):
        field.decode_into(field.suffix, memoryview(b""), np.empty(1), SampleContext())


@pytest.mark.parametrize(
    ("field", "fill"),
    [(Json, {"tags": []}), (Json, None), (Text, ""), (Text, None), (Raw, b"")],
)
def test_the_value_of_a_missing_part_is_the_fill(field, fill):
    assert field(".x", optional=True, fill=fill).missing_value(SampleContext()) == fill


def test_a_fill_that_one_user_changes_is_unchanged_for_the_next_sample():
    field = Json(".json", optional=True, fill={"tags": []})
    field.missing_value(SampleContext())["tags"].append("changed")
    assert field.missing_value(SampleContext()) == {"tags": []}


@pytest.mark.parametrize("field", [Json, Text, Raw])
def test_a_fill_without_optional_is_refused(field):
    with pytest.raises(SettingError, match="is for samples that lack the part"):
        field(".x", fill="nothing")


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_samples_that_lack_a_part_get_the_fill(make_loader, tmp_path, executor):
    members = [(f"{number}.bin", b"x") for number in range(6)]
    for number in range(3, 6):
        members += [(f"{number}.json", b"[%d]" % number), (f"{number}.txt", b"%d" % number)]
    path = tmp_path / "some.tar"
    path.write_bytes(tar_bytes(sorted(members)))
    fields = {
        "raw": Raw(".bin"),
        "json": Json(".json", optional=True),
        "text": Text(".txt", optional=True, fill="none"),
    }
    batches = list(make_loader(path, fields, batch_size=3, executor=executor))
    assert [batch["json"] for batch in batches] == [[None] * 3, [[3], [4], [5]]]
    assert [batch["text"] for batch in batches] == [["none"] * 3, ["3", "4", "5"]]

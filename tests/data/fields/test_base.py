"""Properties that all fields share."""

import pickle

import pytest

from penstock.data.fields import Array, Image, Json, Label, Raw, Text


@pytest.mark.parametrize(
    ("field", "fixed_shape"),
    [
        (Image(size=8), True),
        (Image(size=8, fit="short"), False),
        (Image(), False),
        (Array(".npy"), True),
        (Array(".npy", ragged=True), False),
        (Label(".cls"), True),
        (Json(".json"), False),
        (Text(".txt"), False),
        (Raw(".bin"), False),
    ],
)
def test_fields_report_whether_they_have_a_fixed_shape_and_can_be_pickled(field, fixed_shape):
    assert field.fixed_shape is fixed_shape
    assert pickle.loads(pickle.dumps(field)) == field


def test_a_field_takes_several_suffixes():
    assert Json((".json", ".meta")).suffixes == (".json", ".meta")
    assert Label((".cls", ".id")).suffixes == (".cls", ".id")
    assert Image().suffixes == (".jpg", ".jpeg", ".png")

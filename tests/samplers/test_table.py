"""Tables of metadata: columns, rows, fingerprints, refusals."""

import numpy as np
import pytest
import torch

from penstock.errors import SampleError, SettingError
from penstock.samplers import MetadataTable
from penstock.samplers.table import as_table


def locate(sample):
    return {"shard": "a.tar", "member": f"m{sample}", "offset": 512 * sample}


def test_strings_and_numbers_become_columns_and_rows_can_be_read_back():
    rows = [{"identity": 7, "modality": "rgb", "score": 1}, {"identity": 3, "modality": "ir", "score": 0.5}]
    table = as_table(rows, None, locate)
    assert [table.row(0), table.row(1)] == rows
    codes, values = table.column("modality").codes()
    assert (codes.tolist(), values) == ([1, 0], ["ir", "rgb"])
    assert table.column("identity").codes()[0].tolist() == [1, 0]


def test_numbers_of_numpy_and_tensors_of_one_number_are_accepted():
    table = MetadataTable.of(identity=[np.int64(3), torch.tensor(4)], length=np.array([2.5, 1.0]))
    assert table.row(1) == {"identity": 4, "length": 1.0}


def test_without_names_the_plain_values_of_the_first_sample_are_read():
    assert list(as_table([{"id": 1, "box": [1, 2], "cam": "c1"}], None, locate).columns) == ["id", "cam"]


def test_its_text_lists_values_with_their_shares():
    table = MetadataTable.of(identity=range(8), modality=["rgb"] * 6 + ["ir"] * 2)
    assert str(table) == "8 samples: identity (8 values), modality (ir 25%, rgb 75%)"


def test_the_fingerprint_covers_names_types_and_values():
    tables = [
        MetadataTable.of(identity=[1, 2]),
        MetadataTable.of(identity=[2, 1]),
        MetadataTable.of(person=[1, 2]),
        MetadataTable.of(identity=["1", "2"]),
        MetadataTable.of(identity=[1.0, 2.0]),
    ]
    assert len({table.fingerprint for table in tables}) == len(tables)
    assert MetadataTable.of(identity=[1, 2]).fingerprint == tables[0].fingerprint


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"camera": 1}, "no 'identity'"),
        ({"identity": None}, "None"),
        ({"identity": "seven"}, "'seven'"),
        ({"identity": float("nan")}, "nan"),
        ({"identity": torch.zeros(2)}, "tensor"),
        ([1], "list"),
    ],
)
def test_an_error_about_a_sample_reports_its_place(second, message):
    with pytest.raises(SampleError) as caught:
        as_table([{"identity": 1}, second], ["identity"], locate)
    assert message in caught.value.reason
    assert caught.value.where() == {"shard": "a.tar", "member": "m1", "offset": 512, "stage": "metadata"}


def test_numbers_among_strings_are_refused():
    with pytest.raises(SampleError, match="not a string"):
        MetadataTable.of(identity=["seven", 7])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "at least one column"),
        ({"a": []}, "empty"),
        ({"a": [1], "b": [1, 2]}, "length"),
        ({"a": [2**70]}, "64 bits"),
    ],
)
def test_columns_that_make_no_table_are_refused(columns, message):
    with pytest.raises(SettingError, match=message):
        MetadataTable.of(**columns)


def test_a_missing_column_is_refused_with_the_nearest_name():
    table = MetadataTable.of(identity=[1], modality=["rgb"])
    with pytest.raises(SettingError, match="Perhaps identity is meant"):
        table.column("identiy")
    with pytest.raises(SettingError, match="strings"):
        table.numbers("modality")

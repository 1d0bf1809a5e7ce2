import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.record_files import CLASSES, HUGGING_FACE, encoded_image, labelled_images, write_hugging_face
from tests.support.record_files import write_parquet as write

from penstock.errors import DecodeError, SampleError, SettingError, ShardError, StorageError
from penstock.shards.codecs.arrays import decode_npy
from penstock.shards.pack.records import parquet

IMAGE = encoded_image(1)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_a_column_of_bytes_that_are_images_is_an_image(tmp_path, read_records, kind):
    write(tmp_path / "a.parquet", {"img": pa.array([None, b"x", IMAGE], kind)})
    first, second, third = read_records(tmp_path / "a.parquet")
    assert "has no value" in first.reason
    assert "is no image" in second.reason
    assert third == {".jpg": IMAGE}


def test_a_column_of_bytes_without_an_image_is_stored_as_bytes(tmp_path, read_records):
    write(tmp_path / "a.parquet", {"data": pa.array([b"x", b"y"], pa.binary())})
    assert read_records(tmp_path / "a.parquet") == [{".bin": b"x"}, {".bin": b"y"}]


def test_all_column_types_are_packed_by_the_rule(tmp_path, read_records):
    write(
        tmp_path / "a.parquet",
        {
            "image": pa.array([{"bytes": IMAGE, "path": "a/b.jpg"}]),
            "label": pa.array([3], pa.uint8()),
            "caption": pa.array(["naïve"], pa.large_string()),
            "split": pa.array(["train"]).dictionary_encode(),
            "size": pa.array([[4, 5]], pa.list_(pa.int64())),
            "when": pa.array([1_700_000_000], pa.timestamp("s")),
            "meta": pa.array([{"a": None, "b": [1.5]}]),
            "flag": [True],
            "nothing": pa.nulls(1),
        },
    )
    (parts,) = read_records(tmp_path / "a.parquet")
    assert json.loads(parts.pop(".json")) == {
        "image.path": "a/b.jpg",
        "split": "train",
        "size": [4, 5],
        "when": "2023-11-14T22:13:20",
        "meta": {"a": None, "b": [1.5]},
        "flag": True,
        "nothing": None,
    }
    assert parts == {".jpg": IMAGE, ".cls": b"3", ".txt": "naïve".encode()}


def test_a_list_of_numbers_can_be_stored_as_an_array_of_its_own_type(tmp_path, read_records):
    write(tmp_path / "a.parquet", {"v": pa.array([[0.1, 0.2]], pa.list_(pa.float32()))})
    (parts,) = read_records(tmp_path / "a.parquet", columns=(("v", "array"),))
    assert decode_npy(parts[".npy"]).dtype == np.float32
    assert decode_npy(parts[".npy"]).tolist() == np.array([0.1, 0.2], np.float32).tolist()


def test_the_names_of_classes_come_from_the_metadata_of_hugging_face(tmp_path, sources_of):
    (source,) = sources_of(write_hugging_face(tmp_path / "a.parquet", labelled_images(3)))
    assert source.class_files == {"classes.txt": tuple(CLASSES)}


def test_a_column_declared_as_audio_is_stored_as_bytes(tmp_path, read_records):
    features = {"info": {"features": {"sound": {"_type": "Audio"}}}}
    sounds = pa.array([{"bytes": b"RIFF....", "path": "a.wav"}])
    write(tmp_path / "a.parquet", {"sound": sounds}, features=features)
    assert read_records(tmp_path / "a.parquet") == [{".bin": b"RIFF....", ".json": b'{"sound.path": "a.wav"}'}]


def test_a_column_declared_as_image_is_one_even_if_its_first_values_are_not(tmp_path, read_records):
    write_hugging_face(tmp_path / "a.parquet", [(b"<html>", 0)] * 20 + [(IMAGE, 1)])
    *bad, good = read_records(tmp_path / "a.parquet")
    assert len(bad) == 20
    assert all("is no image" in error.reason for error in bad)
    assert good == {".jpg": IMAGE, ".cls": b"1"}


@pytest.mark.parametrize("columns", [{"l": pa.array([[b"x"]])}, {"s": pa.array([{"image": {"bytes": b"x"}}])}])
def test_nested_bytes_are_refused(tmp_path, read_records, columns):
    write(tmp_path / "a.parquet", columns)
    with pytest.raises(SettingError, match="lists or structs of bytes"):
        read_records(tmp_path / "a.parquet")


def test_a_task_reads_its_rows_from_whichever_row_groups_they_are_in(tmp_path, sources_of, monkeypatch):
    monkeypatch.setattr(parquet, "MAX_BATCH_ROWS", 3)
    samples = labelled_images(40)
    (source,) = sources_of(write_hugging_face(tmp_path / "a.parquet", samples))
    rows = [0, 6, 7, 12, 13, 14, 39]
    selection = source.select(rows)
    read = list(source.reader.read(source.path, selection.samples))
    assert [dict(parts)[".cls"] for parts in read] == [str(samples[row][1]).encode() for row in rows]


def test_the_size_of_a_row_is_the_mean_of_its_group_over_the_packed_columns(tmp_path, sources_of):
    columns = {"a": [b"x" * 1000] * 4 + [b"y" * 9000] * 4, "b": [b"z" * 100_000] * 8}
    path = write(
        tmp_path / "a.parquet",
        columns,
        row_group_size=4,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
    )
    (source,) = sources_of(path, columns=(("a", None),))
    assert source.index.lengths.tolist() == pytest.approx([1000] * 4 + [9000] * 4, rel=0.1)


def damage_page(path, needle):
    data = bytearray(path.read_bytes())
    at = data.index(needle)
    data[at : at + 4] = bytes(value ^ 0xFF for value in data[at : at + 4])
    path.write_bytes(data)


def test_a_damaged_page_costs_the_rows_of_its_group_only(tmp_path, read_records):
    samples = labelled_images(21)  # groups of seven
    path = write_hugging_face(
        tmp_path / "a.parquet",
        samples,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
        write_page_checksum=True,
    )
    damage_page(path, samples[9][0])
    read = read_records(path)
    assert [isinstance(parts, DecodeError) for parts in read] == [7 <= row < 14 for row in range(21)]
    assert "row group 1" in read[8].reason


def test_text_that_is_not_utf8_costs_its_row_only(tmp_path, read_records):
    text = pa.array([b"good", b"\xff\xfe", b"fine"], pa.binary()).view(pa.string())
    write(tmp_path / "a.parquet", {"caption": text})
    good, bad, fine = read_records(tmp_path / "a.parquet")
    assert good == {".txt": b"good"}
    assert isinstance(bad, SampleError)
    assert fine == {".txt": b"fine"}


def test_a_file_that_lacks_a_column_of_the_first_file_is_an_error_with_its_name(tmp_path, sources_of):
    write(tmp_path / "a.parquet", {"data": [b"x"]})
    write(tmp_path / "b.parquet", {"other": [b"x"]})
    with pytest.raises(ShardError, match="no column 'data'") as caught:
        sources_of(tmp_path)
    assert caught.value.shard == str(tmp_path / "b.parquet")


def test_a_file_whose_labels_have_other_classes_than_the_first_file_is_an_error(tmp_path, sources_of):
    write_hugging_face(tmp_path / "a.parquet", labelled_images(3))
    other = json.loads(json.dumps(HUGGING_FACE))
    other["info"]["features"]["label"]["names"].reverse()
    table = pq.read_table(tmp_path / "a.parquet").replace_schema_metadata({"huggingface": json.dumps(other)})
    pq.write_table(table, tmp_path / "b.parquet")
    with pytest.raises(ShardError, match="other classes") as caught:
        sources_of(tmp_path)
    assert caught.value.shard == str(tmp_path / "b.parquet")


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" + b"\xff" * 40 + b"PAR1", b"<html>"])
def test_a_file_that_is_no_parquet_is_an_error_with_its_name(tmp_path, sources_of, data):
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(ShardError, match="Parquet") as caught:
        sources_of(tmp_path / "a.parquet")
    assert caught.value.shard == str(tmp_path / "a.parquet")


def test_features_that_are_no_json_are_an_error_instead_of_lost_classes(tmp_path, sources_of):
    table = pa.table({"label": [1]}).replace_schema_metadata({"huggingface": '{"info'})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ShardError, match="no JSON"):
        sources_of(tmp_path / "a.parquet")


def test_an_error_of_the_disk_is_raised_instead_of_making_rows_bad(tmp_path, sources_of, monkeypatch):
    (source,) = sources_of(write_hugging_face(tmp_path / "a.parquet", labelled_images(3)))

    def fail(*_, **__):
        raise OSError(5, "Input/output error")
        yield

    monkeypatch.setattr(parquet._ParquetFile, "batches", fail)
    with pytest.raises(StorageError, match="Input/output error"):
        list(source.reader.read(source.path, source.select([0]).samples))

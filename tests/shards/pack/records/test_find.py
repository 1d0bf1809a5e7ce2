"""Which files are recognised as records, in workers as well, and which stay loose files or shards."""

import sys
from pathlib import Path

import pytest
from tests.support.record_files import (
    SOURCES,
    encoded_image,
    example,
    int64,
    labelled_images,
    tfrecord,
    write_hdf5,
    write_lmdb,
    write_mds,
    write_parquet,
    write_samples,
    write_tfrecord,
)

from penstock.errors import SettingError
from penstock.shards.pack.options import PackOptions
from penstock.shards.pack.plan import make_plan
from penstock.shards.pack.records.find import find_record_files
from penstock.shards.pack.run import pack
from penstock.shards.pack.sources import find_pack_sources
from penstock.testing import tar_bytes

IMAGE = encoded_image(1)


def found(src, stated="auto"):
    result = find_record_files(str(src), stated)
    return None if result is None else (result[0], [Path(path).name for path in result[1]])


@pytest.mark.parametrize("name", ["a.parquet", "A.PARQUET", "train-00000-of-00010.parquet"])
def test_parquet_files_are_recognised_by_name(tmp_path, name):
    write_parquet(tmp_path / name, {"x": [b"1"]})
    assert found(tmp_path) == found(tmp_path / name) == found(tmp_path / "*") == ("parquet", [name])


@pytest.mark.parametrize("name", ["a.tfrecord", "a.tfrecords", "a.tfrecord-00000-of-00001", "train-00000-of-01024"])
def test_tfrecord_files_are_recognised_by_name_or_by_their_first_checksum(tmp_path, name):
    write_tfrecord(tmp_path / name, [{"x": [1]}])
    assert found(tmp_path) == found(tmp_path / name) == ("tfrecord", [name])


def test_a_file_named_like_a_part_of_several_that_is_no_tfrecord_stays_a_loose_file(tmp_path):
    (tmp_path / "notes-00000-of-00001").write_bytes(b"just some text that is long enough")
    assert found(tmp_path) is None


@pytest.mark.parametrize("name", ["a.h5", "a.hdf5", "a.hdf"])
def test_hdf5_files_are_recognised_by_name(tmp_path, name):
    write_hdf5(tmp_path / name, {"x": [b"1"]})
    assert found(tmp_path) == ("hdf5", [name])


def test_an_lmdb_is_a_folder_or_a_file(tmp_path):
    write_lmdb(tmp_path / "folder", {"a": b"1"})
    write_lmdb(tmp_path / "a.lmdb", {"a": b"1"}, subdir=False)
    assert found(tmp_path / "folder") == found(tmp_path / "folder" / "data.mdb") == ("lmdb", ["data.mdb"])
    assert found(tmp_path / "a.lmdb") == ("lmdb", ["a.lmdb"])
    assert found(tmp_path / "{folder,a.lmdb}") == ("lmdb", ["data.mdb", "a.lmdb"])


@pytest.mark.parametrize("writer", ["parquet", "hdf5", "lmdb"])
def test_a_file_with_an_unknown_name_is_recognised_by_its_first_bytes(tmp_path, writer):
    path = tmp_path / "blob"
    if writer == "parquet":
        write_parquet(path, {"x": [b"1"]})
    elif writer == "hdf5":
        write_hdf5(path, {"x": [b"1"]})
    else:
        write_lmdb(path, {"a": b"1"}, subdir=False)
    assert found(path) == (writer, ["blob"])


def test_an_mds_dataset_is_its_folder(tmp_path):
    folder = write_mds(tmp_path / "a", {"x": "bytes"}, [{"x": b"1"}] * 11)
    assert found(folder) == ("mds", ["shard.00000.mds", "shard.00001.mds"])
    with pytest.raises(SettingError, match="its index"):
        found(folder / "*.mds")
    (folder / "index.json").unlink()
    with pytest.raises(SettingError, match="its index"):
        found(folder)


def test_a_json_file_called_index_does_not_make_an_mds_dataset(tmp_path):
    (tmp_path / "index.json").write_text("{}")
    (tmp_path / "0001.jpg").write_bytes(IMAGE)
    assert found(tmp_path) is None


def test_ranges_and_globs_select_files_in_order(tmp_path):
    for split in ("train", "test"):
        for number in range(3):
            write_parquet(tmp_path / f"{split}-{number}.parquet", {"x": [b"1"]})
    assert found(tmp_path / "train-*") == ("parquet", [f"train-{number}.parquet" for number in range(3)])
    assert found(tmp_path / "test-{1..2}.parquet") == ("parquet", ["test-1.parquet", "test-2.parquet"])


def test_a_glob_may_pass_shards_and_parquet_files_separately_but_not_mixed(tmp_path):
    write_parquet(tmp_path / "a.parquet", {"x": [b"1"]})
    write_hdf5(tmp_path / "b.h5", {"x": [b"1"]})
    with pytest.raises(SettingError, match="not of the same format"):
        found(tmp_path / "*")


def test_documents_beside_record_files_are_ignored(tmp_path):
    write_parquet(tmp_path / "a.parquet", {"x": [b"1"]})
    for name in ("README.md", "LICENSE", "dataset_infos.json", "_SUCCESS", ".hidden.jpg"):
        (tmp_path / name).write_text("text")
    assert found(tmp_path) == ("parquet", ["a.parquet"])


def test_other_samples_beside_record_files_are_refused_instead_of_being_left_out(tmp_path):
    write_parquet(tmp_path / "a.parquet", {"x": [b"1"]})
    (tmp_path / "b.jpg").write_bytes(IMAGE)
    with pytest.raises(SettingError, match=r"'b\.jpg'") as caught:
        found(tmp_path)
    assert "--source-format" in caught.value.advice
    assert found(tmp_path, "parquet") == ("parquet", ["a.parquet"])
    assert found(tmp_path, "files") is None


def test_files_that_are_parts_of_samples_stay_loose_files(tmp_path):
    write_hdf5(tmp_path / "0001.h5", {"x": [b"1"]})
    (tmp_path / "0001.jpg").write_bytes(IMAGE)
    assert found(tmp_path) is None
    (source,) = find_pack_sources(str(tmp_path), PackOptions())
    assert sorted(source.index.suffixes) == [".h5", ".jpg"]


def test_shards_in_a_folder_come_first(tmp_path):
    (tmp_path / "a.tar").write_bytes(tar_bytes([("1.txt", b"1")]))
    write_parquet(tmp_path / "a.parquet", {"x": [b"1"]})
    assert found(tmp_path) is None
    assert found(tmp_path / "*.tar") is None


@pytest.mark.parametrize("name", ["data/a.parquet", "data/a.tfrecord", "x/y/data.mdb", "x/shard.00000.mds"])
def test_record_files_deeper_in_a_folder_are_refused_unless_files_are_meant(tmp_path, name):
    path = tmp_path / "src" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    with pytest.raises(SettingError, match=path.name) as caught:
        list(find_pack_sources(str(tmp_path / "src"), PackOptions()))
    assert "--source-format files" in caught.value.advice
    (source,) = find_pack_sources(str(tmp_path / "src"), PackOptions(format="files"))
    assert len(source.index) == 1


@pytest.mark.parametrize("src", ["s3://bucket/a.parquet", "https://host/a.tfrecord"])
def test_record_files_in_an_object_store_are_refused_with_advice(src):
    with pytest.raises(SettingError, match="object store") as caught:
        found(src)
    assert "disk" in caught.value.advice


def test_a_stated_format_reads_files_of_any_name(tmp_path):
    (tmp_path / "part0").write_bytes(tfrecord(example({"x": [1]})))
    assert found(tmp_path) is None
    assert found(tmp_path, "tfrecord") == found(tmp_path / "*", "tfrecord") == ("tfrecord", ["part0"])


def test_require_is_refused_for_records_with_columns(tmp_path):
    folder = write_mds(tmp_path / "a", {"x": "int"}, [{"x": int64(1)}])
    with pytest.raises(SettingError, match="columns"):
        list(find_pack_sources(str(folder), PackOptions(require=(".jpg",))))


@pytest.mark.parametrize(
    ("source", "module", "extra"),
    [
        ("parquet", "pyarrow", "parquet"),
        ("tfrecord", "google_crc32c", "tfrecord"),
        ("lmdb", "lmdb", "lmdb"),
        ("hdf5", "h5py", "hdf5"),
    ],
)
def test_a_missing_library_is_an_error_that_names_the_extra(tmp_path, monkeypatch, sources_of, source, module, extra):
    src = write_samples(source, tmp_path / "src", labelled_images(4))
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SettingError, match=f"{module} is not installed") as caught:
        sources_of(src)
    assert f"pip install 'penstock[{extra}]'" in caught.value.advice


@pytest.mark.parametrize("source", [source for source in SOURCES if source != "folders"])
def test_records_are_listed_and_packed_by_worker_processes(tmp_path, source):
    samples = labelled_images(12)
    src = write_samples(source, tmp_path / "src", [sample for sample in samples if sample[0].startswith(b"\xff\xd8")])
    options = PackOptions()
    plan = make_plan(list(find_pack_sources(str(src), options)), options)
    (report,) = pack(plan, tmp_path / "packed", workers=2)
    assert (report.samples, sorted(report.fields)) == (8, [".cls", ".jpg"])


def test_a_stated_format_without_files_is_refused(tmp_path):
    for src in (tmp_path, tmp_path / "*.parquet"):
        with pytest.raises(SettingError, match="no files of the format parquet"):
            found(src, "parquet")


def test_options_that_do_not_concern_the_source_are_refused(tmp_path):
    (tmp_path / "a.tar").write_bytes(tar_bytes([("1.txt", b"1")]))
    write_parquet(tmp_path / "a.parquet", {"x": [b"1"]})
    for options in ({"labels": "folder"}, {"columns": (("x", None),)}):
        with pytest.raises(SettingError, match=r"a\.tar"):
            list(find_pack_sources(str(tmp_path / "a.tar"), PackOptions(**options)))
    with pytest.raises(SettingError, match="no folder of loose files"):
        list(find_pack_sources(str(tmp_path / "a.parquet"), PackOptions(labels="folder")))

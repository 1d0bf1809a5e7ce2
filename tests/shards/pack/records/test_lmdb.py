import struct
import sys

import lmdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.record_files import encoded_image, write_lmdb

from penstock.errors import PairingError, SampleError, SettingError, ShardError, WorkerCrash
from penstock.shards.pack.options import PackOptions
from penstock.shards.pack.records.lmdb import _name_of, unquote_to_bytes
from penstock.shards.pack.sources import find_pack_sources
from penstock.testing import corrupt

IMAGES = [encoded_image(number, kind) for number, kind in enumerate(("JPEG", "PNG", "JPEG"))]


@pytest.mark.parametrize("subdir", [True, False])
def test_keys_like_file_names_are_paired_into_samples(tmp_path, read_records, subdir):
    values = {"a/1.jpg": IMAGES[0], "a/1.mask.png": IMAGES[1], "a/2.jpg": IMAGES[2], "a/2.mask.png": IMAGES[1]}
    path = write_lmdb(tmp_path / "data.lmdb", values, subdir=subdir)
    assert read_records(path) == [
        {".jpg": IMAGES[0], ".mask.png": IMAGES[1]},
        {".jpg": IMAGES[2], ".mask.png": IMAGES[1]},
    ]


def test_values_of_other_keys_are_images_by_their_bytes(tmp_path, read_records, sources_of):
    path = write_lmdb(tmp_path / "data", {"img_1.25": IMAGES[0], "x y": IMAGES[1], b"\xff\0": IMAGES[2]})
    assert read_records(path) == [{".jpg": IMAGES[0]}, {".png": IMAGES[1]}, {".jpg": IMAGES[2]}]
    (source,) = sources_of(path)
    assert source.index.keys == ["img_1.25", "x y", "%FF%00"]


def test_a_value_that_is_no_image_is_bad_and_the_error_shows_how_it_begins(tmp_path, read_records):
    image, bad = read_records(write_lmdb(tmp_path / "data", {"a": IMAGES[0], "b": b"\x80\x04pickle"}))
    assert image == {".jpg": IMAGES[0]}
    assert isinstance(bad, SampleError)
    assert "80 04 70 69" in bad.reason
    assert "pickles" in bad.advice


def test_incomplete_samples_are_an_error_or_are_listed_with_skip(tmp_path, sources_of):
    path = write_lmdb(tmp_path / "data", {"1.jpg": b"a", "1.cls": b"0", "2.jpg": b"b", "3.jpg": b"", "3.cls": b"1"})
    with pytest.raises(PairingError):
        sources_of(path)
    (source,) = sources_of(path, on_bad="skip")
    assert source.complete.tolist() == [0]
    assert {(problem.kind, problem.member) for problem in source.problems} == {("orphan", "2.jpg"), ("empty", "3.jpg")}


def test_required_suffixes_hold_for_keys_too(tmp_path, sources_of):
    path = write_lmdb(tmp_path / "data", {"1_a.jpg": b"a", "1_b.jpg": b"b"})
    (source,) = sources_of(path, require=("_a.jpg", "_b.jpg"))
    assert source.index.keys == ["1"]


def test_nothing_is_written_beside_the_database(tmp_path, read_records):
    path = write_lmdb(tmp_path / "data", {"a": IMAGES[0]})
    (path / "lock.mdb").unlink()
    before = {entry.name: entry.stat().st_mtime_ns for entry in path.iterdir()}
    read_records(path)
    assert {entry.name: entry.stat().st_mtime_ns for entry in path.iterdir()} == before


@pytest.mark.parametrize("key", ["../../etc/passwd", "/etc/passwd", "a//b", "a%2Fb", "a\nb", "\x1b[2J", "..", "a/./b"])
def test_keys_that_are_no_plain_paths_are_escaped(key):
    name = _name_of(key.encode())
    assert name.isprintable()
    assert not name.startswith("/")
    assert not {"", ".", ".."} & set(name.split("/")[:-1])
    assert unquote_to_bytes(name) == key.encode()


@given(st.binary(min_size=1, max_size=30) | st.text(max_size=10).map(lambda text: text.encode("utf-8", "ignore")))
def test_every_key_is_found_again_by_its_name(key):
    assert unquote_to_bytes(_name_of(key)) == key


def test_several_values_for_a_key_are_refused(tmp_path, sources_of):
    data = bytearray((write_lmdb(tmp_path / "data", {"a": b"1"}) / "data.mdb").read_bytes())
    for page in (0, 4096):
        data[page + 92] |= 0x04  # the flag MDB_DUPSORT of the main database, which the C library can set
    (tmp_path / "data" / "data.mdb").write_bytes(data)
    with pytest.raises(SettingError, match="several values"):
        sources_of(tmp_path / "data")


def test_columns_are_refused(tmp_path, sources_of):
    with pytest.raises(SettingError, match="no columns"):
        sources_of(write_lmdb(tmp_path / "data", {"a": IMAGES[0]}), columns=(("image", None),))


@pytest.mark.parametrize("kept", [0, 100, 4096, 8192, -4096])
def test_a_database_that_is_cut_short_is_an_error_instead_of_a_crash(tmp_path, sources_of, kept):
    path = write_lmdb(tmp_path / "data", {f"{number:04d}": bytes(5000) for number in range(50)}) / "data.mdb"
    with lmdb.open(str(tmp_path / "data")) as environment:
        used = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    path.write_bytes(path.read_bytes()[: kept if kept >= 0 else used + kept])
    with pytest.raises(ShardError) as caught:
        sources_of(path, format="lmdb")
    assert caught.value.shard == str(path)


@pytest.mark.skipif(sys.platform != "linux", reason="where a read behind the end of a mapped file kills the process")
def test_a_damaged_page_that_kills_the_library_is_an_error_that_names_the_file(tmp_path):
    path = write_lmdb(tmp_path / "data", {f"{number:04d}": b"x" * 100 for number in range(500)}) / "data.mdb"
    data = bytearray(path.read_bytes())
    for page in range(2, len(data) // 4096):
        if struct.unpack_from("<H", data, page * 4096 + 10)[0] & 3:  # a page of the tree: its entries lie elsewhere
            data[page * 4096 + 16 : page * 4096 + 80] = b"\xff" * 64
    path.write_bytes(data)
    with pytest.raises(WorkerCrash, match="worker process died") as caught:
        list(find_pack_sources(str(tmp_path / "data"), PackOptions()))
    assert caught.value.shard == str(path)
    assert "copy or download it again" in caught.value.advice


@pytest.mark.parametrize("seed", range(20))
def test_a_flipped_bit_in_the_first_pages_gives_samples_or_errors(tmp_path, sources_of, seed):
    path = write_lmdb(tmp_path / "data", {"a": IMAGES[0]}) / "data.mdb"
    at = int(np.random.default_rng(seed).integers(0, 150))
    path.write_bytes(corrupt.flip_bit(path.read_bytes(), at))
    try:
        sources_of(tmp_path / "data")
    except (ShardError, SettingError):
        pass

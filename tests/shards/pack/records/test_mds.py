import gzip
import io
import json
import pickle
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.support.record_files import encoded_image, int64, write_mds

from penstock.errors import DecodeError, SampleError, SettingError, ShardError
from penstock.shards.codecs.arrays import decode_npy
from penstock.shards.pack.records import mds
from penstock.shards.pack.records.mds import MdsReader, _decode

IMAGE = encoded_image(1)


def change_index(folder, change):
    """Apply a function to the first shard's description."""
    document = json.loads((folder / "index.json").read_text())
    change(document["shards"][0])
    (folder / "index.json").write_text(json.dumps(document))


def dynamic_array(array, dtype_code):
    return bytes([dtype_code, array.ndim << 2 | 0, *array.shape]) + array.tobytes()


def raw_image(image):
    return struct.pack("<3I", *image.size, len(image.mode)) + image.mode.encode() + image.tobytes()


def test_every_encoding_is_packed_by_the_rule(tmp_path, read_records):
    columns = {
        "image": ("png", encoded_image(2, "PNG")),
        "label": ("int64", int64(-3)),
        "text": ("str", "naïve".encode()),
        "array": ("ndarray", dynamic_array(np.array([[1, 2]], "<i2"), 17)),
        "fixed": ("ndarray:float32:2,2", np.ones((2, 2), "<f4").tobytes()),
        "blob": ("bytes", b"\0x"),
        "u": ("uint8", b"\xff"),
        "x": ("float32", np.float32(0.5).tobytes()),
        "big": ("str_int", b"100000000000000000000"),
        "s": ("str_float", b"0.25"),
        "d": ("str_decimal", b"1.10"),
        "j": ("json", b'{"k": [1, NaN]}'),
    }
    encodings = {name: encoding for name, (encoding, _) in columns.items()}
    row = {name: value for name, (_, value) in columns.items()}
    (parts,) = read_records(write_mds(tmp_path / "a", encodings, [row]))
    parsed = json.loads(parts.pop(".json"))
    assert parsed.pop("j")["k"][0] == 1
    assert parsed == {"u": 255, "x": 0.5, "big": 10**20, "s": 0.25, "d": "1.10"}
    assert decode_npy(parts.pop(".array.npy")).tolist() == [[1, 2]]
    assert decode_npy(parts.pop(".fixed.npy")).tolist() == [[1, 1], [1, 1]]
    assert parts == {".png": row["image"], ".cls": b"-3", ".txt": "naïve".encode(), ".bin": b"\0x"}


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "I;16"])
def test_a_raw_image_becomes_a_png_of_the_same_pixels(tmp_path, read_records, mode):
    image = Image.frombytes(mode, (3, 2), bytes(range(3 * 2 * {"RGB": 3, "RGBA": 4, "L": 1, "I;16": 2}[mode])))
    (parts,) = read_records(write_mds(tmp_path / "a", {"image": "pil"}, [{"image": raw_image(image)}]))
    with Image.open(io.BytesIO(parts[".png"])) as packed:
        assert packed.tobytes() == image.tobytes()


def test_the_indices_of_a_raw_palette_image_are_kept(tmp_path, read_records):
    image = Image.frombytes("P", (3, 2), bytes([0, 1, 2, 255, 7, 3]))
    (parts,) = read_records(write_mds(tmp_path / "a", {"mask": "pil"}, [{"mask": raw_image(image)}]))
    with Image.open(io.BytesIO(parts[".png"])) as packed:
        assert packed.tobytes() == image.tobytes()


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('unpickled')",))


@pytest.mark.parametrize("stated", [(), (("meta", None),), (("meta", "bytes"), ("image", None))])
def test_a_pickled_column_is_refused_and_never_read(tmp_path, sources_of, stated):
    rows = [{"image": IMAGE, "meta": pickle.dumps(Bomb())}]
    folder = write_mds(tmp_path / "a", {"image": "jpeg", "meta": "pkl"}, rows)
    with pytest.raises(SettingError, match="'meta' is pickled") as caught:
        sources_of(folder, columns=stated)
    assert "--column image" in caught.value.advice


def test_the_other_columns_can_be_packed_without_a_pickled_one(tmp_path, read_records):
    rows = [{"image": IMAGE, "meta": pickle.dumps(Bomb())}]
    folder = write_mds(tmp_path / "a", {"image": "jpeg", "meta": "pkl"}, rows)
    assert read_records(folder, columns=(("image", None),)) == [{".jpg": IMAGE}]


@pytest.mark.parametrize("encoding", ["list[jpeg]", "video", "pkl:x"])
def test_an_unknown_encoding_is_refused_by_name(tmp_path, sources_of, encoding):
    folder = write_mds(tmp_path / "a", {"x": encoding}, [{"x": b"1"}])
    with pytest.raises(SettingError, match="encoding"):
        sources_of(folder)


@pytest.mark.parametrize("suffix", [".br", ".bz2", ".snappy"])
def test_other_compressions_are_refused_with_advice(tmp_path, sources_of, suffix):
    folder = write_mds(tmp_path / "a", {"x": "bytes"}, [{"x": b"1"}])
    (folder / "shard.00000.mds").rename(folder / f"shard.00000.mds{suffix}")
    change_index(folder, lambda shard: shard.update(raw_data={"basename": f"shard.00000.mds{suffix}", "bytes": 1}))
    with pytest.raises(SettingError, match="Penstock does not read"):
        sources_of(folder, format="mds")


def test_a_shard_in_both_forms_is_read_once(tmp_path, read_records):
    rows = [{"x": b"%d" % number} for number in range(25)]
    folder = write_mds(tmp_path / "a", {"x": "bytes"}, rows, compression="zstd")
    write_mds(folder, {"x": "bytes"}, rows[:10])
    complete = write_mds(tmp_path / "b", {"x": "bytes"}, rows, compression="zstd")
    (folder / "index.json").write_bytes((complete / "index.json").read_bytes())
    assert [parts[".bin"] for parts in read_records(folder)] == [row["x"] for row in rows]


def test_gzip_shards_are_read(tmp_path, read_records):
    folder = write_mds(tmp_path / "a", {"x": "bytes"}, [{"x": b"1"}])
    shard = folder / "shard.00000.mds"
    (folder / "shard.00000.mds.gz").write_bytes(gzip.compress(shard.read_bytes()))
    shard.unlink()
    change_index(folder, lambda shard: shard.update(zip_data={"basename": "shard.00000.mds.gz", "bytes": 1}))
    assert read_records(folder) == [{".bin": b"1"}]


@pytest.mark.parametrize("compression", ["zstd", "gz"])
def test_a_shard_that_inflates_beyond_the_limit_is_refused(tmp_path, sources_of, monkeypatch, compression):
    monkeypatch.setattr(mds, "MAX_INFLATED_BYTES", 100_000)
    folder = write_mds(tmp_path / "a", {"x": "bytes"}, [{"x": bytes(200_000)}], compression="zstd")
    if compression == "gz":
        (folder / "shard.00000.mds.gz").write_bytes(gzip.compress(bytes(200_000)))
        change_index(folder, lambda shard: shard.update(zip_data={"basename": "shard.00000.mds.gz", "bytes": 1}))
    with pytest.raises(ShardError, match="100000"):
        sources_of(folder)


# -- the index ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../shard.00000.mds", "/etc/passwd", "..", "", "a\\b"])
def test_a_shard_outside_the_folder_is_refused(tmp_path, sources_of, name):
    folder = write_mds(tmp_path / "a", {"x": "bytes"}, [{"x": b"1"}])
    (tmp_path / "shard.00000.mds").write_bytes((folder / "shard.00000.mds").read_bytes())
    change_index(folder, lambda shard: shard.update(raw_data={"basename": name, "bytes": 1}))
    with pytest.raises(ShardError, match="no file of this folder"):
        sources_of(folder)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": "json"}, "format 'json'"),
        ({"version": 3}, "version 3"),
        ({"column_sizes": []}, "contradicts itself"),
        ({"column_sizes": [-1]}, "contradicts itself"),
        ({"samples": "many"}, "no index"),
        ({"samples": 2}, "has 1 samples, and its index states 2"),
        ({"column_names": None}, "no index"),
    ],
)
def test_an_index_that_is_wrong_is_an_error(tmp_path, sources_of, change, reason):
    folder = write_mds(tmp_path / "a", {"x": "bytes"}, [{"x": b"1"}])
    change_index(folder, lambda shard: shard.update(change))
    with pytest.raises(ShardError, match=reason):
        sources_of(folder)


@pytest.mark.parametrize("text", ["", "[]", '{"version": 2}', '{"version": 1, "shards": []}', "[" * 100_000])
def test_an_index_that_cannot_be_parsed_is_an_error_with_its_path(tmp_path, sources_of, text):
    folder = write_mds(tmp_path / "a", {"x": "bytes"}, [{"x": b"1"}])
    (folder / "index.json").write_text(text)
    with pytest.raises(ShardError, match="no index of MDS shards") as caught:
        sources_of(folder)
    assert caught.value.shard == str(folder / "index.json")


def test_a_shard_that_is_missing_is_an_error_with_its_name(tmp_path, sources_of):
    folder = write_mds(tmp_path / "a", {"x": "bytes"}, [{"x": b"1"}] * 11)
    (folder / "shard.00001.mds").unlink()
    with pytest.raises(ShardError, match=r"shard\.00001\.mds"):
        sources_of(folder)


def test_shards_with_different_columns_are_an_error(tmp_path, sources_of):
    folder = write_mds(tmp_path / "a", {"x": "bytes"}, [{"x": b"1"}] * 11)
    change_index(folder, lambda shard: shard.update(column_encodings=["str"]))
    with pytest.raises(ShardError, match="other columns"):
        sources_of(folder)


# -- damaged shards ----------------------------------------------------------------------------------------------------


def test_a_sample_whose_columns_do_not_add_up_is_bad_and_the_others_are_not(tmp_path, read_records):
    folder = write_mds(tmp_path / "a", {"x": "bytes"}, [{"x": b"aaaa"}, {"x": b"bbbb"}, {"x": b"cccc"}])
    shard = folder / "shard.00000.mds"
    data = shard.read_bytes()
    shard.write_bytes(data.replace(b"\4\0\0\0bbbb", b"\3\0\0\0bbbb"))
    first, second, third = read_records(folder)
    assert (first, third) == ({".bin": b"aaaa"}, {".bin": b"cccc"})
    assert isinstance(second, DecodeError)
    assert "7 bytes of a sample of 8" in second.reason


@pytest.mark.parametrize("kept", [0, 3, 4, 11, 100, -1])
def test_a_shard_that_is_cut_short_is_an_error_with_its_name(tmp_path, sources_of, kept):
    folder = write_mds(tmp_path / "a", {"x": "bytes"}, [{"x": b"aaaa"}, {"x": b"bbbb"}])
    shard = folder / "shard.00000.mds"
    shard.write_bytes(shard.read_bytes()[:kept])
    with pytest.raises(ShardError) as caught:
        sources_of(folder)
    assert caught.value.shard == str(shard)


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_damaged_shard_gives_samples_or_errors(tmp_path, data):
    folder = tmp_path / "a"
    encodings = {"image": "jpeg", "label": "int", "a": "ndarray", "p": "pil", "j": "json", "s": "str"}
    row = {
        "image": IMAGE[:40],
        "label": int64(1),
        "a": dynamic_array(np.array([1, 2], "<i2"), 17),
        "p": raw_image(Image.new("L", (2, 2))),
        "j": b"[1]",
        "s": b"text",
    }
    write_mds(folder, encodings, [row] * 3)
    reader = MdsReader.open([str(folder / "shard.00000.mds")], ())
    shard = folder / "shard.00000.mds"
    raw = bytearray(shard.read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(raw) - 4))
        raw[at : at + 4] = data.draw(st.sampled_from([b"\xff" * 4, bytes(4), b"\0\0\0\x7f", b"\1\2\3\4"]))
    shard.write_bytes(raw)
    try:
        listed = reader.list_records(str(shard))
    except ShardError:
        return
    samples = [listed.index.sample(number) for number in range(len(listed.index))]
    assert len(list(reader.read(str(shard), samples))) == len(samples)


@pytest.mark.parametrize("encoding", ["int", "uint16", "float64", "ndarray", "ndarray:int8", "pil", "json", "str_int"])
@given(value=st.binary(max_size=40))
def test_any_value_is_decoded_or_is_a_sample_error(encoding, value):
    try:
        _decode(encoding, value)
    except SampleError:
        pass


@pytest.mark.parametrize("encoding", ["ndarray:object:1", "ndarray:i4,i4:1", "ndarray:int8:x"])
def test_an_array_of_an_unknown_dtype_or_shape_is_an_error(encoding):
    with pytest.raises(SampleError, match="ndarray"):
        _decode(encoding, bytes(8))


def test_a_raw_image_that_claims_too_many_pixels_is_refused_before_memory_is_allocated():
    with pytest.raises(SampleError, match="pixels"):
        _decode("pil", struct.pack("<3I", 2**31, 2**31, 1) + b"L" + bytes(10))

import gzip
import json
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.record_files import (
    encoded_image,
    example,
    feature,
    labelled_images,
    message,
    tfrecord,
    varint,
    write_tfrecord,
)

from penstock.errors import DecodeError, SampleError, SettingError, ShardError
from penstock.shards.codecs.arrays import decode_npy
from penstock.shards.pack.records.tfrecord import masked_crc, parse_example
from penstock.testing import corrupt

IMAGE = encoded_image(1)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = (
    st.lists(st.binary(max_size=50), max_size=4)
    | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20)
    | st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20)
)


# -- messages ----------------------------------------------------------------------------------------------------------


@given(st.dictionaries(NAMES, VALUES, max_size=5))
def test_every_example_is_parsed_exactly(features):
    parsed = parse_example(example(features))
    assert {name: list(values) for name, values in parsed.items()} == features


@given(st.dictionaries(NAMES, VALUES, max_size=3), st.data())
def test_a_damaged_message_is_parsed_or_is_a_sample_error(features, data):
    raw = bytearray(example(features))
    for _ in range(data.draw(st.integers(1, 4))):
        if raw:
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))]
    try:
        parse_example(bytes(raw))
    except SampleError:
        pass


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_are_a_sample_error(data):
    try:
        parse_example(data)
    except SampleError:
        pass


def test_numbers_that_are_not_packed_are_parsed_too():
    integers = message(3, b"\x08" + varint(5) + b"\x08" + varint(-1))
    floats = message(2, b"\x0d" + struct.pack("<f", 0.5))
    entries = [
        message(1, message(1, b"i") + message(2, integers)),
        message(1, message(1, b"f") + message(2, floats)),
    ]
    parsed = parse_example(message(1, b"".join(entries)))
    assert (parsed["i"], parsed["f"].tolist()) == ([5, -1], [0.5])


def test_unknown_fields_of_all_wire_types_are_skipped():
    odd = (
        varint(9 << 3) + varint(300) + varint(9 << 3 | 1) + bytes(8) + varint(9 << 3 | 5) + bytes(4) + message(9, b"x")
    )
    entry = message(1, b"i") + message(2, feature([7]) + odd)
    assert parse_example(odd + message(1, odd + message(1, entry + odd))) == {"i": [7]}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (varint(1 << 3 | 2) + varint(1 << 40), "cut short"),
        (varint(1 << 3 | 3), "unknown"),
        (b"\xff" * 20, "too long"),
        (b"\x0a", "cut short"),
        (varint(1 << 3) + varint(5), "wrong type"),
        (message(1, message(1, message(1, b"\xff") + message(2, feature([1])))), "UTF-8"),
        (message(1, message(1, message(2, message(2, message(1, b"abc"))))), "fraction"),
        (message(2, b""), "SequenceExample"),
    ],
)
def test_what_is_no_example_is_an_error_with_the_reason(data, reason):
    with pytest.raises(SampleError, match=reason):
        parse_example(data)


# -- records -----------------------------------------------------------------------------------------------------------


def test_the_checksum_is_that_of_the_published_format():
    # the first record of TensorFlow's own documentation of the format: crc32c of "123456789" is 0xe3069283
    assert masked_crc(b"123456789") == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_features_become_parts_by_the_rule(tmp_path, read_records):
    features = {
        "image/encoded": [IMAGE],
        "image/class/label": [5],
        "image/class/text": [b"tench"],
        "image/height": [480],
        "boxes": [0.5, 1.0],
        "names": [b"a", b"b"],
        "empty": [],
    }
    (parts,) = read_records(write_tfrecord(tmp_path / "a.tfrecord", [features]))
    assert json.loads(parts.pop(".json")) == {
        "boxes": [0.5, 1.0],
        "empty": [],
        "image/class/text": ["tench"],
        "image/height": [480],
        "names": ["a", "b"],
    }
    assert parts == {".jpg": IMAGE, ".cls": b"5"}


def test_raw_bytes_and_arrays_can_be_chosen(tmp_path, read_records):
    path = write_tfrecord(tmp_path / "a.tfrecord", [{"raw": [b"\xff\0"], "v": [0.5, 1.5], "i": [1, 2]}])
    (parts,) = read_records(path, columns=(("raw", None), ("v", "array"), ("i", "array")))
    assert parts.pop(".bin") == b"\xff\0"
    assert {suffix: (decode_npy(data).dtype, decode_npy(data).tolist()) for suffix, data in parts.items()} == {
        ".v.npy": (np.float32, [0.5, 1.5]),
        ".i.npy": (np.int64, [1, 2]),
    }


def test_a_feature_that_the_first_records_lack_is_added_to_the_json(tmp_path, read_records):
    records = [{"image": [IMAGE]}] * 70 + [{"image": [IMAGE], "rare": [3]}]
    *most, last = read_records(write_tfrecord(tmp_path / "a.tfrecord", records))
    assert most == [{".jpg": IMAGE}] * 70
    assert last == {".jpg": IMAGE, ".json": b'{"rare": [3]}'}


def test_an_image_that_the_first_records_lack_is_an_error_of_its_record_instead_of_being_dropped(
    tmp_path, read_records
):
    records = [{"image": [IMAGE]}] * 70 + [{"image": [IMAGE], "mask": [IMAGE]}]
    *most, last = read_records(write_tfrecord(tmp_path / "a.tfrecord", records))
    assert most == [{".jpg": IMAGE}] * 70
    assert "'mask'" in last.reason


def test_a_feature_that_some_of_the_first_records_lack_keeps_its_role(tmp_path, read_records):
    records = [{"image": [IMAGE]}, {"image": [IMAGE], "mask": [IMAGE]}]
    first, second = read_records(write_tfrecord(tmp_path / "a.tfrecord", records))
    assert "'mask' has no value" in first.reason
    assert second == {".jpg": IMAGE, ".mask.jpg": IMAGE}


def test_several_images_in_a_feature_are_refused(tmp_path, read_records):
    path = write_tfrecord(tmp_path / "a.tfrecord", [{"frames": [IMAGE, IMAGE]}])
    with pytest.raises(SettingError, match="several images"):
        read_records(path)


def test_a_record_with_a_flipped_bit_is_bad_and_the_others_are_not(tmp_path, read_records):
    samples = labelled_images(5)
    path = write_tfrecord(tmp_path / "a.tfrecord", [{"image": [image], "label": [label]} for image, label in samples])
    data = path.read_bytes()
    path.write_bytes(corrupt.flip_bit(data, data.index(samples[2][0]) + 30))
    read = read_records(path)
    assert [isinstance(parts, DecodeError) for parts in read] == [False, False, True, False, False]
    assert "CRC32C" in read[2].reason


def listed_problem(sources_of, path):
    (source,) = sources_of(path, on_bad="skip")
    return len(source.index), [(problem.member, problem.offset, problem.reason) for problem in source.problems]


@pytest.mark.parametrize("cut", [1, 5, 11, 13, 40])
def test_a_file_that_is_cut_short_keeps_its_records_and_the_rest_is_listed(tmp_path, sources_of, cut):
    records = [tfrecord(example({"image": [IMAGE], "n": [number]})) for number in range(3)]
    path = tmp_path / "a.tfrecord"
    whole = b"".join(records)
    path.write_bytes(whole[: len(records[0]) + len(records[1]) + cut])
    count, ((member, offset, reason),) = listed_problem(sources_of, path)
    assert (count, member, offset) == (2, "00000002", len(records[0]) + len(records[1]))
    assert "cut short" in reason
    with pytest.raises(ShardError, match="cut short") as caught:
        sources_of(path)
    assert (caught.value.shard, caught.value.offset) == (str(path), offset)
    assert "--on-error skip" in caught.value.advice


def test_a_length_whose_checksum_does_not_match_ends_the_file_there(tmp_path, sources_of):
    records = [tfrecord(example({"n": [number]})) for number in range(3)]
    path = tmp_path / "a.tfrecord"
    path.write_bytes(corrupt.flip_bit(b"".join(records), len(records[0]) + 2))
    count, ((_, offset, reason),) = listed_problem(sources_of, path)
    assert (count, offset) == (1, len(records[0]))
    assert f"{len(records[1]) + len(records[2])} bytes" in reason


@pytest.mark.parametrize("length", [2**31, 2**62, 2**64 - 1])
def test_an_absurd_length_is_refused_before_memory_is_allocated(tmp_path, sources_of, length):
    header = struct.pack("<Q", length)
    path = tmp_path / "a.tfrecord"
    path.write_bytes(tfrecord(example({"n": [1]})) + header + struct.pack("<I", masked_crc(header)) + bytes(100))
    tracemalloc.start()
    try:
        count, ((_, _, reason),) = listed_problem(sources_of, path)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert count == 1
    assert str(length) in reason


def test_a_file_that_is_compressed_as_a_whole_is_refused_with_advice(tmp_path, sources_of):
    (tmp_path / "a.tfrecord").write_bytes(gzip.compress(tfrecord(example({"n": [1]}))))
    with pytest.raises(ShardError, match="gunzip"):
        sources_of(tmp_path / "a.tfrecord", on_bad="skip")


@pytest.mark.parametrize("data", [b"<html>not found</html>", b"x"])
def test_a_file_without_a_record_is_an_error_with_its_name(tmp_path, sources_of, data):
    (tmp_path / "a.tfrecord").write_bytes(data)
    with pytest.raises(ShardError) as caught:
        sources_of(tmp_path / "a.tfrecord", on_bad="skip")
    assert caught.value.shard == str(tmp_path / "a.tfrecord")


@pytest.mark.parametrize(
    ("record", "reason"),
    [(b"\xff" * 20, r"no tf\.train\.Example"), (message(2, b""), "SequenceExample"), (b"", "no record")],
)
def test_records_that_are_no_examples_are_refused_with_the_reason(tmp_path, sources_of, record, reason):
    (tmp_path / "a.tfrecord").write_bytes(tfrecord(record))
    with pytest.raises(ShardError, match=reason):
        sources_of(tmp_path / "a.tfrecord")

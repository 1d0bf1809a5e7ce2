"""Arrays are encoded and decoded as NPY, NPZ and zstd, and bad ones are errors."""

import io
import struct
import zipfile

import deflate
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock.errors import DecodeError, GuardError, SampleError
from penstock.shards.codecs import arrays as arrays_module
from penstock.shards.codecs import (
    compress,
    decode_npy,
    decode_npy_zst,
    decode_npz,
    decompress,
    encode_npy,
)
from penstock.shards.codecs.zstd import zstd

FEATURES = np.arange(600, dtype=np.float16).reshape(20, 30)


def npz(save=np.savez_compressed, **arrays) -> bytes:
    out = io.BytesIO()
    save(out, **(arrays or {"features": FEATURES, "edge": np.eye(3)}))
    return out.getvalue()


plain_dtypes = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?"),
    hnp.complex_number_dtypes(endianness="?"),
    hnp.byte_string_dtypes(min_len=1),
    hnp.unicode_string_dtypes(min_len=1),
)


@settings(deadline=None, max_examples=300)
@given(hnp.arrays(plain_dtypes, hnp.array_shapes(min_dims=0, min_side=0, max_side=4)))
def test_arrays_are_decoded_from_npy_as_they_were_encoded(array):
    data = encode_npy(array)
    decoded = decode_npy(data)
    assert (decoded.dtype, decoded.shape, decoded.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert (len(data) - array.nbytes) % 64 == 0
    assert np.array_equal(np.load(io.BytesIO(data)).view(np.void), decoded.view(np.void))
    assert decode_npy_zst(compress(data)).tobytes() == array.tobytes()


@pytest.mark.parametrize("array", [FEATURES.T, FEATURES[::2, ::-3], np.broadcast_to(FEATURES[0], (4, 30))])
def test_any_memory_order_is_written_in_c_order(array):
    decoded = decode_npy(encode_npy(array))
    assert np.array_equal(decoded, array)
    assert decoded.flags.c_contiguous


def test_fortran_order_is_read_without_a_copy():
    out = io.BytesIO()
    np.save(out, np.asfortranarray(FEATURES))
    decoded = decode_npy(out.getvalue())
    assert np.array_equal(decoded, FEATURES)
    assert decoded.flags.f_contiguous


def test_decoding_npy_is_a_read_only_view_of_the_data():
    data = bytearray(encode_npy(FEATURES))
    array = decode_npy(memoryview(data))
    assert np.shares_memory(array, np.frombuffer(data, np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 1


@pytest.mark.parametrize(
    "array",
    [np.zeros(2, [("x", "<f4"), ("y", "<i4")]), np.array([{}], object), np.zeros(2, "M8[s]")],
    ids=["structured", "objects", "dates"],
)
def test_an_array_that_could_not_be_read_again_is_not_written(array):
    with pytest.raises(SampleError):
        encode_npy(array)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_npz_arrays_equal_those_that_numpy_reads(save, wrap):
    data = npz(save)
    arrays = decode_npz(wrap(data))
    with np.load(io.BytesIO(data)) as expected:
        assert list(arrays) == expected.files
        for name in expected.files:
            assert arrays[name].dtype == expected[name].dtype
            assert np.array_equal(arrays[name], expected[name])
            assert not arrays[name].flags.writeable


def test_stored_arrays_of_an_npz_are_views_of_the_data():
    data = npz(np.savez)
    assert np.shares_memory(decode_npz(data)["features"], np.frombuffer(data, np.uint8))


def test_only_the_named_arrays_are_inflated(monkeypatch):
    inflated = []

    def inflate(content, name, length):
        inflated.append(name)
        return deflate.deflate_decompress(content, length)

    monkeypatch.setattr(arrays_module, "_inflate", inflate)
    assert list(decode_npz(npz(), ["edge"])) == ["edge"]
    assert inflated == ["edge"]


def test_an_empty_list_of_names_returns_no_arrays():
    assert decode_npz(npz(), []) == {}


def test_an_unknown_name_is_an_error_that_lists_the_existing_names():
    with pytest.raises(DecodeError, match="no array 'mask'; it has 'edge', 'features'"):
        decode_npz(npz(), ["edge", "mask"])


def test_pickles_in_an_npz_are_refused_with_their_name():
    data = npz(features=FEATURES, bad=np.array([{}], object))
    with pytest.raises(GuardError, match=r"'bad'.*pickle") as caught:
        decode_npz(data)
    assert "never unpickles" in caught.value.advice
    assert list(decode_npz(data, ["features"])) == ["features"]


def test_an_npz_with_a_file_that_is_not_an_array_is_refused():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("readme.txt", "hello there")
    with pytest.raises(GuardError, match=r"'readme\.txt'.*not an NPY"):
        decode_npz(out.getvalue())


def test_two_entries_with_the_name_of_one_array_are_refused():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("a.npy", encode_npy(FEATURES))
        file.writestr("a", encode_npy(FEATURES))
    with pytest.raises(GuardError, match="same name"):
        decode_npz(out.getvalue())


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_flipped_bit_in_the_data_of_an_npz_is_an_error(save):
    data = bytearray(npz(save, features=FEATURES))
    data[len(data) // 2] ^= 4
    with pytest.raises(DecodeError, match=r"checksum|damaged|inflates"):
        decode_npz(bytes(data))


@pytest.mark.parametrize("change", [-1, 1, 5000])
def test_a_false_inflated_size_is_an_error(change):
    data = bytearray(npz(features=FEATURES))
    directory = data.rindex(b"PK\1\2")
    (length,) = struct.unpack_from("<L", data, directory + 24)
    struct.pack_into("<L", data, directory + 24, length + change)
    with pytest.raises(DecodeError, match=r"has a false size|inflates to"):
        decode_npz(bytes(data))


def test_a_declared_inflated_size_of_zero_is_an_error():
    data = bytearray(npz(features=FEATURES))
    struct.pack_into("<L", data, data.rindex(b"PK\1\2") + 24, 0)
    with pytest.raises((DecodeError, GuardError)):
        decode_npz(bytes(data))


def test_an_npz_array_whose_shape_exceeds_its_data_is_refused():
    out = io.BytesIO()
    content = encode_npy(FEATURES).replace(b"(20, 30)", b"(90, 90)")
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.npy", content)
    with pytest.raises(GuardError, match=r"'a'.*only 1200"):
        decode_npz(out.getvalue())


@given(st.binary(max_size=5000))
@settings(deadline=None, max_examples=50)
def test_zstd_decompresses_what_it_compressed(data):
    assert decompress(compress(data), len(data)) == data
    assert decompress(memoryview(compress(data)), len(data) + 10) == data


def test_a_zstd_frame_is_refused_by_its_declared_size_before_it_is_inflated():
    bomb = compress(bytes(100_000))
    with pytest.raises(GuardError, match="100000 bytes; 99999"):
        decompress(bomb, 99_999)


def test_a_zstd_frame_without_its_size_is_refused():
    stream = zstd.ZstdCompressor()
    data = stream.compress(bytes(100_000)) + stream.flush()
    with pytest.raises(GuardError, match="does not state"):
        decompress(data, 10**9)


def test_zstd_data_that_is_truncated_extended_flipped_or_of_another_format_is_an_error():
    data = compress(encode_npy(FEATURES))
    for length in range(len(data)):
        with pytest.raises(DecodeError):
            decode_npy_zst(data[:length])
    for damaged in (data + b"x", data + data, b"hello there", data[:-1] + bytes((data[-1] ^ 1,))):
        with pytest.raises(DecodeError):
            decode_npy_zst(damaged)

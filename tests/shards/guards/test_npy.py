"""The NPY guard accepts every header that numpy writes, and never evaluates one."""

import io
import struct

import numpy as np
import pytest

from penstock.errors import GuardError
from penstock.shards.guards import inspect_npy
from penstock.shards.guards import npy as npy_guard


def npy(header: str, content: bytes = b"", version: int = 1) -> bytes:
    text = header.encode("latin-1") + b"\n"
    length = struct.pack("<H" if version == 1 else "<L", len(text))
    return b"\x93NUMPY" + bytes((version, 0)) + length + text + content


def npy_with(descr: str = "'<f4'", order: str = "False", shape: str = "(2, 3)", size: int = 24) -> bytes:
    return npy(f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}", bytes(size))


def reason(data: bytes, total_length: int | None = None) -> str:
    """Return the reason with which the guard refuses the data."""
    with pytest.raises(GuardError) as caught:
        inspect_npy(data, total_length)
    assert caught.value.stage == "guard"
    assert caught.value.advice
    return caught.value.reason


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 3), np.float16),
        np.zeros((3, 4, 5), ">i4"),
        np.asfortranarray(np.zeros((3, 4))),
        np.array(7, np.uint8),
        np.zeros((0, 5), np.complex64),
        np.array([True]),
        np.array(["abc", "ü"]),
        np.array([b"abc"]),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_every_header_that_numpy_writes_is_accepted(array, version):
    out = io.BytesIO()
    np.lib.format.write_array(out, array, version)
    header = inspect_npy(memoryview(out.getvalue()))
    assert (header.dtype, header.shape, header.data_length) == (array.dtype, array.shape, array.nbytes)
    assert header.data_offset + header.data_length == len(out.getvalue())
    assert header.fortran_order == (array.flags.f_contiguous and not array.flags.c_contiguous)


def test_keys_may_come_in_any_order_and_spacing():
    data = npy("{'shape':(2,3) , 'fortran_order' : True,'descr':'<f4'}", bytes(24))
    header = inspect_npy(data)
    assert (header.shape, header.fortran_order) == ((2, 3), True)


def test_the_beginning_is_enough_if_the_total_length_is_given():
    data = npy_with()
    assert inspect_npy(data[:-20], total_length=len(data)).data_length == 24
    assert "only 23" in reason(data[:-20], total_length=len(data) - 1)


def test_equal_headers_are_parsed_once():
    npy_guard._parse.cache_clear()
    first, second = inspect_npy(npy_with()), inspect_npy(bytearray(npy_with()))
    assert first is second
    assert npy_guard._parse.cache_info().hits == 1


def test_a_shape_that_exceeds_the_data_is_refused():
    assert "only 24" in reason(npy_with(shape="(2000, 3000)"))


def test_data_that_exceeds_the_shape_is_refused():
    assert "as many as 24" in reason(npy_with(shape="(1, 3)"))


def test_a_shape_whose_product_overflows_64_bits_is_refused():
    sides = ", ".join(["4294967296"] * 2)
    assert "larger than any memory" in reason(npy_with(shape=f"({sides}, 4)", size=0))
    assert "larger than any memory" in reason(npy_with(shape=f"(0, {sides}, 4)", size=0))


def test_negative_sizes_are_refused():
    assert "negative" in reason(npy_with(shape="(-2, -3)"))


def test_too_many_dimensions_are_refused():
    assert "33 dimensions" in reason(npy_with(shape="(" + "1, " * 33 + ")", size=4))


@pytest.mark.parametrize("descr", ["'|O'", "'O'", "'<O8'"])
def test_pickled_objects_are_refused_as_such(descr):
    assert "pickle" in reason(npy_with(descr))


def test_numpys_own_object_array_is_refused():
    out = io.BytesIO()
    np.save(out, np.array([{}, []], object), allow_pickle=True)
    assert "pickle" in reason(out.getvalue())


def test_structured_arrays_are_refused_as_such():
    out = io.BytesIO()
    np.save(out, np.zeros(2, [("x", "<f4"), ("y", "<i4")]))
    assert "structured" in reason(out.getvalue())


@pytest.mark.parametrize("descr", ["'<f3'", "'<i'", "''", "'<M8[ns]'", "'f4,f4'", "'|S0'", "'<U2147483647'", "True"])
def test_other_dtypes_are_refused(descr):
    assert "dtype" in reason(npy_with(descr))


@pytest.mark.parametrize(
    "shape", ["(2)", "(2 3)", "(02, 3)", "(2,, 3)", "(,)", "(9999999999999999999999, 3)", "'(2, 3)'", "False"]
)
def test_shapes_that_are_not_tuples_of_integers_are_refused(shape):
    assert "shape" in reason(npy_with(shape=shape))


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': __import__('os').system('true'), 'fortran_order': False, 'shape': (2, 3), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), } or 1",
        "{'descr': '<f4', 'fortran_order': False, }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), 'more': True, }",
        "{'descr': '<f4', 'descr': '<f4', 'shape': (2, 3), }",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (2, 3), }",
        "{'descr': '<f4', 'fortran_order': '', 'shape': (2, 3), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L), }",
        "",
    ],
)
def test_headers_other_than_the_plain_dictionary_are_refused(header):
    assert "header" in reason(npy(header, bytes(24)))


def test_a_header_without_its_newline_is_refused():
    data = bytearray(npy_with())
    data[data.index(b"\n")] = ord(" ")
    assert "header" in reason(bytes(data))


def test_an_unknown_version_is_refused():
    data = bytearray(npy_with())
    data[6] = 4
    assert "version 4.0" in reason(bytes(data))


def test_a_gigabyte_header_is_refused_by_its_announced_length():
    assert "1073741824" in reason(b"\x93NUMPY\x02\x00" + struct.pack("<L", 2**30))


def test_a_header_made_for_regex_backtracking_is_refused():
    assert "header" in reason(npy("{" + " " * 4000))
    assert "header" in reason(npy("{'descr'" + ":" * 2000 + " " * 2000))


def test_a_truncated_header_is_refused_wherever_it_is_cut():
    data = npy_with()
    for length in range(len(data)):
        reason(data[:length])

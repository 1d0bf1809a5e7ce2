"""Read an NPY header without evaluating it, and compare its shape with the length of the data."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import GuardError
from penstock.shards.guards.buffer import Buffer, flat_view

MAX_HEADER_BYTES = 4096
"""Longest header. Thirty-two dimensions of eighteen digits need less than 1 KB; numpy pads to a multiple of 64."""
MAX_DIMENSIONS = 32
"""Largest number of dimensions that every numpy since 1.x supports."""

_MAGIC = b"\x93NUMPY"
_PAIR = rb"'(\w{1,16})'\s*:\s*('[^']{0,64}'|True|False|\([-\d,\s]{0,1024}\))"
_HEADER = re.compile(rb"\{\s*%b\s*,\s*%b\s*,\s*%b\s*,?\s*\}\s*" % (_PAIR, _PAIR, _PAIR))
_NUMBER = rb"(?:0|-?[1-9]\d{0,17})"
_SHAPE = re.compile(rb"\(\s*(?:|%b\s*,|%b(?:\s*,\s*%b)+\s*,?)\s*\)" % (_NUMBER, _NUMBER, _NUMBER))
_DESCR = re.compile(rb"'([<>|](?:b1|[iu][1248]|f(?:2|4|8|16)|c(?:8|16|32)|[SUV][1-9]\d{0,7}))'")
_SAVE_AGAIN = "Save the array again with numpy.save"


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """The position, shape and dtype of an array's data."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool
    data_offset: int
    """First byte of the data, counted from the magic string."""
    data_length: int


def inspect_npy(data: Buffer, total_length: int | None = None) -> NpyHeader:
    """Return the header of an NPY that has exactly the data it announces; GuardError on anything else.

    `data` may be only the beginning if `total_length` gives the length of the whole. A header that was parsed before
    (samples of one dataset share theirs) costs a dictionary lookup.
    """
    view = flat_view(data)
    header = _parse(bytes(view[: _header_end(view)]))
    total = len(view) if total_length is None else total_length
    actual = total - header.data_offset
    if actual != header.data_length:
        word = "only" if actual < header.data_length else "as many as"
        raise _refusal(
            f"the NPY header says {header.data_length} bytes of data (shape {header.shape}, {header.dtype}), "
            f"but {word} {actual} follow"
        )
    return header


def _header_end(view: bytes | memoryview) -> int:
    if len(view) < 10 or view[:6] != _MAGIC:
        raise _refusal(
            "not an NPY: the magic string is missing", "Check what the file really is; its name may be wrong"
        )
    version = view[6]
    if version not in (1, 2, 3) or view[7] != 0:
        raise _refusal(f"the NPY is of format version {version}.{view[7]}; 1.0, 2.0 and 3.0 are known")
    start = 10 if version == 1 else 12
    length = int.from_bytes(view[8:start], "little")
    if length > MAX_HEADER_BYTES:
        raise _refusal(f"the NPY header is {length} bytes long; more than {MAX_HEADER_BYTES} are not read")
    if start + length > len(view):
        raise _refusal("the NPY is cut short in its header", "Copy or download it again")
    return start + length


@functools.lru_cache(maxsize=256)
def _parse(head: bytes) -> NpyHeader:
    """Parse everything before the data. The function is pure, so its results can be cached."""
    text = head[10 if head[6] == 1 else 12 :]
    match = _HEADER.fullmatch(text)
    if match is None or not text.endswith(b"\n"):
        raise _unreadable(text)
    values = dict(zip(match.groups()[::2], match.groups()[1::2], strict=True))
    if values.keys() != {b"descr", b"fortran_order", b"shape"}:
        raise _refusal("the NPY header lacks descr, fortran_order or shape")
    dtype = _read_dtype(values[b"descr"])
    shape = _read_shape(values[b"shape"])
    if values[b"fortran_order"] not in (b"True", b"False"):
        raise _refusal("the NPY header's fortran_order is neither True nor False")
    # An empty array may have other dimensions too large for numpy, so zeros are left out of this product.
    if math.prod(filter(None, shape)) * dtype.itemsize >= 2**63:
        raise _refusal(f"the NPY header's shape {shape} is larger than any memory")
    length = math.prod(shape) * dtype.itemsize
    return NpyHeader(dtype, shape, values[b"fortran_order"] == b"True", len(head), length)


def _read_dtype(descr: bytes) -> np.dtype[Any]:
    if re.fullmatch(rb"'[<>|=]?O\d{0,2}'", descr):
        raise _refusal(
            "the NPY holds Python objects, which are pickles and can run code",
            "Save it again as a numeric array; Penstock never unpickles data",
        )
    match = _DESCR.fullmatch(descr)
    if match is None:
        raise _refusal(f"the NPY's dtype {descr.decode('latin-1')} is not a plain number, string or bytes")
    try:
        return np.dtype(match[1].decode())
    except TypeError:  # f16 and c32 exist on some platforms only
        raise _refusal(f"the NPY's dtype {descr.decode('latin-1')} does not exist on this machine") from None


def _read_shape(text: bytes) -> tuple[int, ...]:
    if _SHAPE.fullmatch(text) is None:
        raise _refusal(f"the NPY header's shape {text.decode('latin-1')} is not a tuple of integers")
    shape = tuple(int(number) for number in re.findall(rb"-?\d+", text))
    if any(size < 0 for size in shape):
        raise _refusal(f"the NPY header's shape {shape} has a negative size")
    if len(shape) > MAX_DIMENSIONS:
        raise _refusal(f"the NPY header's shape has {len(shape)} dimensions; more than {MAX_DIMENSIONS} are not read")
    return shape


def _unreadable(text: bytes) -> GuardError:
    if re.search(rb"'descr'\s*:\s*[\[(]", text):
        return _refusal("the NPY holds a structured array", "Save each of its columns as an array of its own")
    return _refusal("the NPY header is not the dictionary numpy writes")


def _refusal(reason: str, advice: str = _SAVE_AGAIN) -> GuardError:
    return GuardError(reason, stage="guard", advice=advice)

"""The array field: one array of an NPZ or NPY part, in packed shards too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.types import TENSOR_DTYPES
from penstock.data.fields.base import Field, SampleContext, as_suffixes, check_fill
from penstock.errors import GuardError, SampleError, SettingError
from penstock.shards.codecs.arrays import NpzArchive, decode_npy, decode_npy_zst
from penstock.shards.codecs.by_suffix import codec_of
from penstock.shards.guards.npy import MAX_HEADER_BYTES, inspect_npy
from penstock.shards.pack.convert import array_suffix, packed_suffix

_STORED_BFLOAT16 = np.dtype("V2")
"""Numpy has no bfloat16: `numpy.save` writes two bytes without a meaning."""
_STORE_AS = {
    "S": "Store text in a part of its own, such as .txt or .json",
    "U": "Store text in a part of its own, such as .txt or .json",
    "f": "Store it as float64",
    "c": "Store it as complex128",
}
"""Advice on arrays that no tensor can hold, by the kind of their dtype."""


@dataclass(frozen=True)
class Array(Field):
    """`Array("_features.npz", key="features")`: one array of each sample's NPZ; or `Array(".mask.npy")`.

    The same declaration reads shards that `penstock shards pack` made from such parts. Big-endian arrays are delivered
    in the machine's byte order. Arrays that no tensor can hold (text, longdouble, records, objects) are an error of the
    sample.

    Args:
        suffix: The part to read, or several alternatives.
        key: Name of the array in an NPZ.
        shape: Shape of every sample's array. None: that of the first sample.
        dtype: Dtype of every sample's array. None: that of the first sample. "bfloat16" reads arrays that numpy stores
            as `|V2`. Tensors are then torch.bfloat16; with device="numpy", in a list and in a `transform`, the values
            are the bits, as uint16.
        ragged: Whether shape and dtype may differ. The arrays are then delivered as a list.
        optional: Whether a sample may lack the part.
        fill: Every number of the array of a sample that lacks the part; needs `shape` and `dtype`. None: the arrays
            are a list, in which it gets None.
    """

    suffix: str | tuple[str, ...]
    key: str | None = None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    ragged: bool = False
    optional: bool = False
    fill: int | float | None = None

    def __post_init__(self) -> None:
        if self.dtype is not None:
            _check_dtype(self.dtype)
        self._check_fill()
        for suffix in as_suffixes(self.suffix):
            codec = codec_of(suffix)
            if codec not in ("npz", "npy", "npy.zst"):
                raise SettingError(f"{suffix!r} is not an array part", advice="Use .npz, .npy or .npy.zst")
            if codec == "npz" and self.key is None:
                raise SettingError(f"no key selects an array of {suffix!r}", advice='Give key="…"')
        if self.key is not None and all(codec_of(suffix) != "npz" for suffix in as_suffixes(self.suffix)):
            raise SettingError(
                f"{self.suffix!r} holds one array: key={self.key!r} has no meaning", advice="Leave it out"
            )
        if self.ragged and self.shape is not None:
            raise SettingError("a ragged array has no single shape")

    def _check_fill(self) -> None:
        check_fill(self.fill, self.optional)
        if self.fill is None:
            return
        if self.shape is None or self.dtype is None:
            raise SettingError("fill needs the shape and the dtype of the arrays", advice="Give both, or no fill")
        if _filling(self.fill, self.dtype) is None:
            raise SettingError(f"fill={self.fill!r} is not a number of {self.dtype}")

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The declared suffixes, then those under which `penstock shards pack` stores the array."""
        declared = as_suffixes(self.suffix)
        packed: list[str] = []
        for suffix in declared:
            if codec_of(suffix) == "npz" and self.key is not None:
                packed += [packed_suffix(suffix)]
                packed += [array_suffix(suffix, self.key, codec) for codec in ("raw", "zstd")]
            else:
                packed += [packed_suffix(suffix), packed_suffix(suffix) + ".zst"]
        return tuple(dict.fromkeys((*declared, *packed)))

    @property
    def fixed_shape(self) -> bool:
        """Whether all samples have an array of one shape."""
        return not self.ragged and (not self.optional or self.fill is not None)

    def decode_value(self, suffix: str, data: memoryview, sample: SampleContext) -> NDArray[Any]:
        """Return a copy of the array: the arena is reused, and a transform may write into the array."""
        array = self._view(suffix, data, sample)
        return np.array(array, array.dtype.newbyteorder("="))

    def decode_into(self, suffix: str, data: memoryview, slot: NDArray[Any], sample: SampleContext) -> None:
        """Copy the array once, from the inflated bytes or from the arena, into the slot."""
        array = self._view(suffix, data, sample)
        if array.shape != slot.shape or (array.dtype != slot.dtype and array.dtype.newbyteorder("=") != slot.dtype):
            raise _mismatch(array, f"{slot.dtype}{list(slot.shape)}")
        slot[...] = array

    def read_into(
        self, suffix: str, length: int, slot: NDArray[Any], read: Callable[[Sequence[memoryview]], object]
    ) -> bool:
        """Read an NPY part from its file straight into the slot; return whether that was possible.

        `read` fills memory with the part, from its start. If the header turns out not to match the slot, the caller
        falls back to `decode_into`.
        """
        header_length = length - slot.nbytes
        if codec_of(suffix) != "npy" or not 0 < header_length <= MAX_HEADER_BYTES or not slot.flags.c_contiguous:
            return False
        header = memoryview(bytearray(header_length))
        read((header, slot.reshape(-1).view(np.uint8).data))
        try:
            found = inspect_npy(header, length)
        except GuardError:
            return False
        stored = _STORED_BFLOAT16 if self.dtype == "bfloat16" else slot.dtype
        return (found.shape, found.dtype, found.fortran_order) == (slot.shape, stored, False)

    def missing_value(self, sample: SampleContext) -> NDArray[Any] | None:
        """Return an array that is all `fill`."""
        if self.fill is None or self.shape is None or self.dtype is None:
            return None
        filling = _filling(self.fill, self.dtype)
        assert filling is not None
        return np.full(self.shape, filling)

    def _view(self, suffix: str, data: memoryview, sample: SampleContext) -> NDArray[Any]:
        """Return the array, read-only and of the declared shape and dtype; a raw part is not copied.

        It may be big-endian. Of bfloat16, it holds the bits.
        """
        codec = codec_of(suffix)
        if codec == "npz" and self.key is not None:
            if sample.npz is None or sample.npz.data is not data:
                sample.npz = NpzArchive(data)
            array = sample.npz.array(self.key)
        else:
            array = decode_npy_zst(data) if codec == "npy.zst" else decode_npy(data)
        if self.shape is not None and array.shape != tuple(self.shape):
            raise _mismatch(array, f"{self.dtype or array.dtype}{list(self.shape)}")
        if self.dtype == "bfloat16" and array.dtype == _STORED_BFLOAT16:
            return array.view(np.uint16)
        found = array.dtype
        if found not in TENSOR_DTYPES:
            found = found.newbyteorder("=")
            if found not in TENSOR_DTYPES:
                raise _no_tensor(array)
        if self.dtype is not None and (self.dtype == "bfloat16" or found != np.dtype(self.dtype)):
            raise _mismatch(array, f"{self.dtype}{list(array.shape)}")
        return array


def bfloat16_fields(fields: Mapping[str, Field]) -> list[str]:
    """Return the names of the fields that deliver the bits of bfloat16."""
    return [name for name, each in fields.items() if isinstance(each, Array) and each.dtype == "bfloat16"]


def _mismatch(found: NDArray[Any], expected: str) -> SampleError:
    return SampleError(
        f"array is {found.dtype}{list(found.shape)} where {expected} is expected",
        stage="decode",
        advice="Declare the field ragged=True if samples may differ in shape",
    )


def _no_tensor(found: NDArray[Any]) -> SampleError:
    if found.dtype == _STORED_BFLOAT16:
        advice = 'If it is bfloat16, declare the field with dtype="bfloat16"'
    else:
        advice = _STORE_AS.get(found.dtype.kind, "Store it as numbers")
    return SampleError(
        f"array is {found.dtype}{list(found.shape)}, which no tensor can hold", stage="decode", advice=advice
    )


def _check_dtype(dtype: str) -> None:
    try:
        if dtype == "bfloat16" or np.dtype(dtype) in TENSOR_DTYPES:
            return
    except TypeError:
        pass
    raise SettingError(f"dtype {dtype!r} is not known", advice="Use the name of a tensor's dtype, such as float16")


def _filling(fill: float, dtype: str) -> NDArray[Any] | None:
    """Return the number as a 0-d array of the dtype; None if the dtype does not hold it."""
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            if dtype == "bfloat16":  # the upper half of a float32
                bits = int(np.asarray(fill).astype(np.float32).view(np.uint32))
                return None if bits & 0xFFFF else np.array(bits >> 16, np.uint16)
            filling = np.asarray(fill).astype(dtype)
        except (OverflowError, TypeError, ValueError):
            return None
    return filling if filling.dtype.kind in "fc" or filling == fill else None

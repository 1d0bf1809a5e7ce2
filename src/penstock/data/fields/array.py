"""The array field: one array of an NPZ or NPY part, in packed shards too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.data.fields.base import as_suffixes
from penstock.errors import GuardError, SampleError, SettingError
from penstock.shards.codecs.arrays import decode_npy, decode_npy_zst, decode_npz
from penstock.shards.codecs.by_suffix import codec_of
from penstock.shards.guards.npy import MAX_HEADER_BYTES, inspect_npy
from penstock.shards.pack.convert import array_suffix, packed_suffix


@dataclass(frozen=True)
class Array:
    """`Array("_features.npz", key="features")`: one array of each sample's NPZ; or `Array(".mask.npy")`.

    Shape and dtype come from the first sample if they are not given, and every other sample must have the same. With
    `ragged=True` they may differ, and the arrays are delivered as a list. The same declaration reads shards that
    `penstock shards pack` made from such parts.
    """

    suffix: str | tuple[str, ...]
    key: str | None = None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    ragged: bool = False

    def __post_init__(self) -> None:
        if self.dtype is not None:
            _check_dtype(self.dtype)
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
        """Whether the field was not declared ragged."""
        return not self.ragged

    def decode_value(self, suffix: str, data: memoryview) -> NDArray[Any]:
        """Return a copy of the array: the arena is reused, and a transform may write into the array."""
        return np.array(self._view(suffix, data))

    def decode_into(self, suffix: str, data: memoryview, slot: NDArray[Any]) -> None:
        """Copy the array once, from the inflated bytes or from the arena, into the slot."""
        array = self._view(suffix, data)
        if array.shape != slot.shape or array.dtype != slot.dtype:
            raise _mismatch(array, f"{slot.dtype}{list(slot.shape)}")
        np.copyto(slot, array)

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
        return (found.shape, found.dtype, found.fortran_order) == (slot.shape, slot.dtype, False)

    def _view(self, suffix: str, data: memoryview) -> NDArray[Any]:
        """Return the array, read-only and of the declared shape and dtype; a raw part is not copied."""
        codec = codec_of(suffix)
        if codec == "npz" and self.key is not None:
            array = decode_npz(data, (self.key,))[self.key]
        else:
            array = decode_npy_zst(data) if codec == "npy.zst" else decode_npy(data)
        if self.shape is not None and array.shape != tuple(self.shape):
            raise _mismatch(array, f"{self.dtype or array.dtype}{list(self.shape)}")
        if self.dtype is not None and array.dtype != self.dtype:
            raise _mismatch(array, f"{self.dtype}{list(array.shape)}")
        return array


def _mismatch(found: NDArray[Any], expected: str) -> SampleError:
    return SampleError(
        f"array is {found.dtype}{list(found.shape)} where {expected} is expected",
        stage="decode",
        advice="Declare the field ragged=True if samples may differ in shape",
    )


def _check_dtype(dtype: str) -> None:
    try:
        np.dtype(dtype)
    except TypeError as error:
        raise SettingError(f"dtype {dtype!r} is not known", advice="Use a numpy name, such as float16") from error

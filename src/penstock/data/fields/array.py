"""An array of an NPZ or NPY part, packed or not."""

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

    Shape and dtype come from the first sample if they are not given, and every other sample must have the same;
    `ragged=True` lifts that, and delivers a list. Shards that `penstock shards pack` made from such parts are read by
    the same declaration.
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
                raise SettingError(f"which array of {suffix!r}?", advice='Give key="…"')
        if self.key is not None and all(codec_of(suffix) != "npz" for suffix in as_suffixes(self.suffix)):
            raise SettingError(
                f"{self.suffix!r} holds one array: key={self.key!r} has no meaning", advice="Leave it out"
            )
        if self.ragged and self.shape is not None:
            raise SettingError("a ragged array has no one shape")

    @property
    def suffixes(self) -> tuple[str, ...]:
        """As stored by anybody, then as stored by our packer."""
        stated = as_suffixes(self.suffix)
        packed: list[str] = []
        for suffix in stated:
            if codec_of(suffix) == "npz" and self.key is not None:
                packed += [packed_suffix(suffix)]
                packed += [array_suffix(suffix, self.key, codec) for codec in ("raw", "zstd")]
            else:
                packed += [packed_suffix(suffix), packed_suffix(suffix) + ".zst"]
        return tuple(dict.fromkeys((*stated, *packed)))

    @property
    def fixed_shape(self) -> bool:
        """Unless it was declared ragged."""
        return not self.ragged

    def decode_value(self, suffix: str, data: memoryview) -> NDArray[Any]:
        """A copy: the arena will be used again, and a transform may write into what it is given."""
        return np.array(self._view(suffix, data))

    def decode_into(self, suffix: str, data: memoryview, slot: NDArray[Any]) -> None:
        """One copy: from the inflated bytes, or from the arena, to the slot."""
        array = self._view(suffix, data)
        if array.shape != slot.shape or array.dtype != slot.dtype:
            raise _mismatch(array, f"{slot.dtype}{list(slot.shape)}")
        np.copyto(slot, array)

    def read_into(
        self, suffix: str, length: int, slot: NDArray[Any], read: Callable[[Sequence[memoryview]], object]
    ) -> bool:
        """Without a copy, from the file to the slot: whether that can be done, and has been.

        `read` fills memory with the part, from its start. What turns out to be otherwise is left to `decode_into`.
        """
        head_length = length - slot.nbytes
        if codec_of(suffix) != "npy" or not 0 < head_length <= MAX_HEADER_BYTES or not slot.flags.c_contiguous:
            return False
        head = memoryview(bytearray(head_length))
        read((head, slot.reshape(-1).view(np.uint8).data))
        try:
            found = inspect_npy(head, length)
        except GuardError:
            return False
        return (found.shape, found.dtype, found.fortran_order) == (slot.shape, slot.dtype, False)

    def _view(self, suffix: str, data: memoryview) -> NDArray[Any]:
        """Read-only, and of the arena where the part holds the array as it is; it is what was declared."""
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
